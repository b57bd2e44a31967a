# The search server. Build and run it:
#
#     docker build -t calligram .
#     docker run -p 8000:8000 -e CALLIGRAM_TOKEN=... -v "$HOME:$HOME:ro" calligram serve "$HOME/library" --host 0.0.0.0
#
# A library names its matcher and its pictures by their paths, so mount them at the same paths as on the host.
# tests/serve/test_docker.py runs the steps without Docker.
FROM python:3.11-slim
WORKDIR /app
COPY pyproject.toml constraints.txt README.md LICENSE ./
# torch first and alone, in its build for CPUs: the other one is several gigabytes larger.
RUN pip install --no-cache-dir -c constraints.txt --extra-index-url https://download.pytorch.org/whl/cpu torch
COPY src src
RUN pip install --no-cache-dir -c constraints.txt ".[serve,heic,raw]"
RUN useradd --create-home calligram
USER calligram
EXPOSE 8000
HEALTHCHECK CMD ["python", "-c", "import urllib.request; urllib.request.urlopen('http://127.0.0.1:8000/api/health')"]
ENTRYPOINT ["calligram"]
CMD ["--help"]
