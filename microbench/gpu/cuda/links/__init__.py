"""The links of a real GPU: copies, host memory, managed memory and peers."""
