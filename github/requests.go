package github

// RequestBounds bound what an agent may ask for.
type RequestBounds struct{}

// DefaultRequestBounds is one pull request, one comment and one issue.
func DefaultRequestBounds() RequestBounds { return RequestBounds{} }
