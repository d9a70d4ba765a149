package doze

// APIKey is a long-lived credential. The key itself is shown once, in the
// answer to its creation; afterwards only its hash exists.
type APIKey struct {
	ID        string `json:"id"`
	Key       string `json:"apiKey,omitempty"`
	Name      string `json:"name"`
	Sub       string `json:"sub"`
	SubType   string `json:"sub_type"`
	ExpiresIn string `json:"expires_in,omitempty"` // a Duration
	CreatedAt Time   `json:"createdAt,omitzero"`
	CreatedBy string `json:"createdBy,omitempty"`
	UpdatedAt Time   `json:"updatedAt,omitzero"`
	UpdatedBy string `json:"updatedBy,omitempty"`
}

// Workspace is what resources live in.
type Workspace struct {
	ID          string `json:"id"`
	Name        string `json:"name"`
	DisplayName string `json:"displayName,omitempty"`
	Region      string `json:"region,omitempty"`
	Status      string `json:"status,omitempty"`
	CreatedAt   Time   `json:"createdAt,omitzero"`
	CreatedBy   string `json:"createdBy,omitempty"`
}
