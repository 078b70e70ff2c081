# `specollama serve` in front of an Ollama: docs/install.md.
FROM python:3.11-slim

COPY pyproject.toml README.md LICENSE NOTICE /src/
COPY specollama /src/specollama
RUN pip install --no-cache-dir '/src[proxy]' \
    && rm -r /src \
    && useradd --system --create-home specollama

USER specollama
# A configuration may be mounted at /config/specollama/config.toml.
ENV XDG_CONFIG_HOME=/config
EXPOSE 11435
HEALTHCHECK CMD ["python", "-c", "import urllib.request; urllib.request.urlopen('http://127.0.0.1:11435/healthz')"]

# Outside loopback it serves with SPECOLLAMA_TOKEN set only.
ENTRYPOINT ["specollama"]
CMD ["serve", "--host", "0.0.0.0"]
