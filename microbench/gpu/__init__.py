"""The GPU seam: api.py is the protocol, cuda.py the real one, fake.py a simulation; only this folder imports CUDA."""
