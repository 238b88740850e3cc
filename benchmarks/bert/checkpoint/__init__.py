"""The weights that training starts from: read from TensorFlow 1 or Hugging Face, checked, and kept as safetensors."""
