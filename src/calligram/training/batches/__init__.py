"""What a step sees: batches and the samplers that draw them."""
