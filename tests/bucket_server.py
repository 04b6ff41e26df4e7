"""A bucket on this machine: `bucket_server.py gs|s3 PORT`; prints a line when it is up."""

import sys
import threading


def serve_gs(port):
    from gcp_storage_emulator import server
    from gcp_storage_emulator.handlers import objects

    download = objects.download

    def with_generation(request, response, storage, *rest, **named):
        """Adds the header of GCS that TensorStore reads."""
        download(request, response, storage, *rest, **named)
        if response.status < 300:
            place = request.params["bucket_name"], request.params["object_id"]
            response["x-goog-generation"] = storage.get_file_obj(*place)["generation"]

    def move(request, response, storage, *_, **__):
        """Moves an object. Without this call gcsfs tries it for half a minute before it copies."""
        objects.copy(request, response, storage)
        objects.delete(request, response, storage)

    objects.download = with_generation
    bucket, names = r"[^/]+", r"(?P<object_id>.+)/moveTo/o/(?P<dest_object_id>.+)"
    both = rf"(?=(?P<dest_bucket_name>{bucket}))(?P<bucket_name>{bucket})"
    moved = rf"^/storage/v1/b/{both}/o/{names}$"
    server.HANDLERS = ((moved, {server.POST: move}), *server.HANDLERS)
    server.create_server("127.0.0.1", port, in_memory=True, default_bucket="bucket").start()


def serve_s3(port):
    import boto3
    from moto.server import ThreadedMotoServer

    ThreadedMotoServer(ip_address="127.0.0.1", port=port, verbose=False).start()
    boto3.client("s3", endpoint_url=f"http://127.0.0.1:{port}").create_bucket(Bucket="bucket")


{"gs": serve_gs, "s3": serve_s3}[sys.argv[1]](int(sys.argv[2]))
print("up", flush=True)
threading.Event().wait()
