from specollama._version import __version__ as __version__
from specollama.client import AsyncClient as AsyncClient
from specollama.client import ChatResponse as ChatResponse
from specollama.client import Client as Client
from specollama.client import GenerateResponse as GenerateResponse
