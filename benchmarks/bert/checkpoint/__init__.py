"""The initial weights of training: conversion of TensorFlow 1 and Hugging Face checkpoints to safetensors and back."""
