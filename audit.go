package doze

// AuditLine says who did, or tried to do, what.
type AuditLine struct {
	ID        string      `json:"id"`   // grows with each line
	Time      Time        `json:"time"` // of the request
	Workspace string      `json:"workspace,omitempty"`
	Actor     AuditActor  `json:"actor,omitzero"`
	Source    string      `json:"source,omitempty"` // address that the request came from
	Action    string      `json:"action"`           // such as sandboxes.create
	Method    string      `json:"method,omitempty"`
	Route     string      `json:"route,omitempty"` // pattern of the path
	Object    AuditObject `json:"object,omitzero"`
	Outcome   string      `json:"outcome"`
	Status    int         `json:"status,omitempty"` // of the answer, as HTTP has it
	Error     string      `json:"error,omitempty"`  // its name
	RequestID string      `json:"requestId,omitempty"`
	// ClientRequestID is what the client called the request. It proves nothing.
	ClientRequestID string `json:"clientRequestId,omitempty"`
	// Count is how many requests like this one the line stands for; 0 is one.
	Count  int    `json:"count,omitempty"`
	Detail string `json:"detail,omitempty"` // more, for people
}

// AuditActor is who sent a request. No member of it is a secret.
type AuditActor struct {
	Sub  string `json:"sub,omitempty"`
	Type string `json:"type,omitempty"` // user, service_account or system
	Key  string `json:"key,omitempty"`  // id of the API key, or of the access token
}

// AuditObject is what a request was about.
type AuditObject struct {
	Kind string `json:"kind,omitempty"` // such as sandboxes/previews
	Name string `json:"name,omitempty"` // such as box/web
}

// ActorSystem is the type of the platform itself.
const ActorSystem = "system"

// Outcomes of a line. The platform writes a line before the change that it is about. A
// line that is still begun belongs to a request that is under way, or that a crash cut
// off. The change may have been made.
const (
	AuditBegun  = "begun"
	AuditDone   = "done"
	AuditFailed = "failed"
	AuditDenied = "denied"
)
