"""The only door to confluent-kafka and to the brokers."""
