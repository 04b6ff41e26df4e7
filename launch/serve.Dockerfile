# The image that launch/serve.yaml runs: docker build -f launch/serve.Dockerfile -t IMAGE .
# On the CPU; for an accelerator add its extra below: ".[serve,gpu]" or ".[serve,tpu]".
FROM python:3.11-slim
WORKDIR /cxrjax
COPY setup.py constraints.txt README.md MANIFEST.in ./
COPY cxrjax cxrjax
COPY configs configs
COPY data/demo_base data/demo_base
COPY data/real_base data/real_base
RUN pip install --no-cache-dir -c constraints.txt ".[serve]"
RUN useradd --uid 10001 --create-home cxrjax && mkdir /compiled && chown cxrjax /compiled
USER 10001
# Kept in a volume, so that a pod that comes back need not compile again.
ENV JAX_COMPILATION_CACHE_DIR=/compiled
EXPOSE 8000
ENTRYPOINT ["python", "-m", "cxrjax.serve"]
CMD ["--help"]
