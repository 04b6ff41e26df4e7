"""Language models over HTTP: structured answers, checked, cached, counted.

settings        address, terms and prices of a model
request         messages, images, the form of the answer
client          asks, checks, asks again; many at a time, in order; what may be sent at all
stage           one kind of question, asked of many items; prompt files
completion      one chat completion over HTTP, with retries
exchange        one HTTP request and its answer, within limits
answer          what is believed of a server's answer
secrecy         keeps the key out of what servers say
account         tokens, cost, their limit, the rate limit, and answers already paid for
flags           all of it from a command line and the environment
judges          judges of free text
"""
