"""The webhooks that clusters call: TokenReview and SubjectAccessReview."""
