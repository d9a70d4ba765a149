package doze

// EgressDestinationsMax is how many destinations of a sandbox a node keeps in memory.
const EgressDestinationsMax = 64

// Verdicts about a destination.
const (
	EgressAllowed = "allow"
	EgressDenied  = "deny"
)

// An EgressSummary says where a sandbox connected to of late, and what it was refused.
type EgressSummary struct {
	// Since is when the counts began. It is left out while the node has no rules
	// of the sandbox.
	Since        Time                `json:"since,omitzero"`
	Destinations []EgressDestination `json:"destinations"` // the last used first
}

// An EgressDestination counts the decisions about one destination by one rule.
type EgressDestination struct {
	Protocol string `json:"protocol"` // tcp, icmp, dns, udp or another one of IP
	Host     string `json:"host"`     // a name or an address, or unknown
	Port     uint16 `json:"port"`     // 0 where there is none
	Verdict  string `json:"verdict"`  // allow or deny
	// Rule is what decided: a member of the network, such as allowedDomains[2], or a rule
	// of the platform. The lists may have changed since.
	Rule    string `json:"rule"`
	Reason  string `json:"reason,omitempty"` // of a refusal: why, and what to do
	Count   int    `json:"count"`
	FirstAt Time   `json:"firstAt"`
	LastAt  Time   `json:"lastAt"`
}
