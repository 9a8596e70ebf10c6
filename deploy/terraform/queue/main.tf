# The queue of a dataset, as `kfm queue create` creates it; `kfm queue create --dataset D --print terraform` prints the call.
# One call creates the queues. For further datasets on the same queue, add their topics to `topics` of that call.
# The provider must use the topics' region (us-east-1 for NODD).

terraform {
  required_providers {
    aws = {
      source  = "hashicorp/aws"
      version = ">= 5.0"
    }
  }
}

variable "dataset" {
  type = string
}

variable "queue_name" {
  type    = string
  default = "kfm-nodd-primary"
}

variable "dlq_name" {
  type    = string
  default = "kfm-nodd-dlq"
}

variable "visibility_timeout" {
  type    = number
  default = 900
}

variable "max_receive_count" {
  type    = number
  default = 5
}

# Filter policies as JSON, by topic ARN; with an empty text no message is filtered out.
variable "topics" {
  type = map(string)
}

resource "aws_sqs_queue" "dlq" {
  name                      = var.dlq_name
  message_retention_seconds = 1209600
}

resource "aws_sqs_queue" "primary" {
  name                       = var.queue_name
  visibility_timeout_seconds = var.visibility_timeout
  message_retention_seconds  = 604800
  redrive_policy = jsonencode({
    deadLetterTargetArn = aws_sqs_queue.dlq.arn
    maxReceiveCount     = var.max_receive_count
  })
}

data "aws_iam_policy_document" "topics" {
  statement {
    sid       = join("", concat(["Kfm"], [for part in split("-", var.dataset) : title(part)]))
    effect    = "Allow"
    actions   = ["sqs:SendMessage"]
    resources = [aws_sqs_queue.primary.arn]

    principals {
      type        = "Service"
      identifiers = ["sns.amazonaws.com"]
    }

    condition {
      test     = "ArnEquals"
      variable = "aws:SourceArn"
      values   = keys(var.topics)
    }
  }
}

resource "aws_sqs_queue_policy" "topics" {
  queue_url = aws_sqs_queue.primary.id
  policy    = data.aws_iam_policy_document.topics.json
}

resource "aws_sns_topic_subscription" "topic" {
  for_each = var.topics

  topic_arn            = each.key
  protocol             = "sqs"
  endpoint             = aws_sqs_queue.primary.arn
  raw_message_delivery = false
  filter_policy_scope  = each.value == "" ? null : "MessageBody"
  filter_policy        = each.value == "" ? null : each.value
}

output "queue_url" {
  value = aws_sqs_queue.primary.id
}

output "dlq_url" {
  value = aws_sqs_queue.dlq.id
}
