"""SQS and SNS: receive, land, parse, acknowledge."""
