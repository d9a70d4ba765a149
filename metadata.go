package doze

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"
)

// Limits of names and labels (spec section 8; label limits are ours, so that
// one record stays small).
const (
	NameMax        = 49
	DisplayNameMax = 63
	ExternalIDMax  = 64
	LabelsMax      = 64
	LabelKeyMax    = 128
	LabelValueMax  = 512
)

// Patterns of what callers name.
const (
	NamePattern       = "^[a-z0-9]([a-z0-9-]*[a-z0-9])?$"
	ExternalIDPattern = "^[A-Za-z0-9-]+$"
)

// Plan is the plan of every resource. One installation has one, and bills nobody.
const Plan = "self-hosted"

// Metadata is what most resources share (spec 2.1). The fields below Labels
// are set by the system; what a caller sends in them is ignored.
type Metadata struct {
	Name        string            `json:"name"`
	DisplayName string            `json:"displayName,omitempty"`
	ExternalID  string            `json:"externalId,omitempty"`
	Labels      map[string]string `json:"labels,omitempty"`

	Plan      string `json:"plan,omitempty"` // [Plan]
	URL       string `json:"url,omitempty"`
	Workspace string `json:"workspace,omitempty"`
	CreatedAt Time   `json:"createdAt,omitzero"`
	UpdatedAt Time   `json:"updatedAt,omitzero"`
	CreatedBy string `json:"createdBy,omitempty"`
	UpdatedBy string `json:"updatedBy,omitempty"`
}

// Types of events: a change of the status, and something that happened in it.
const (
	EventDeployment = "deployment"
	EventNotice     = "notice" // a warning begins with WarningPrefix
)

// WarningPrefix begins the message of a notice that says that something which was asked
// for has no effect.
const WarningPrefix = "warning: "

// Event is one thing that happened to a resource (spec 2.8).
type Event struct {
	Type           string `json:"type"`
	Status         string `json:"status"`
	Message        string `json:"message"`
	Time           Time   `json:"time"`
	Revision       string `json:"revision,omitempty"`       // empty in events of earlier versions
	CanaryRevision string `json:"canaryRevision,omitempty"` // the same: there are no canaries
}

// FirstRevision is the revision of a resource that was deployed once.
const FirstRevision = 1

// Revised returns e as an event of a revision of its resource. The first one is
// [FirstRevision], and each redeployment makes the next one.
func (e Event) Revised(revision int) Event {
	e.Revision = strconv.Itoa(revision)
	e.CanaryRevision = e.Revision
	return e
}

var (
	nameForm       = formOf(NamePattern)
	externalIDForm = formOf(ExternalIDPattern)
)

// Problems collects every mistake of one input, so that a caller reads all of
// them at once.
type Problems []string

// Add appends one mistake: the field it is in and what is wrong with it.
func (p *Problems) Add(field, format string, args ...any) {
	*p = append(*p, field+" "+fmt.Sprintf(format, args...))
}

// Missing adds that a field is required, unless something is wrong with it
// already: what cannot be read is there.
func (p *Problems) Missing(field string) { p.first(field, "is required") }

// first adds a mistake unless the field has one already: of what cannot be read,
// nothing else is true.
func (p *Problems) first(field, format string, args ...any) {
	if !p.begin(field + " ") {
		p.Add(field, format, args...)
	}
}

// unreadable reports whether something in a list is known to be of a wrong type:
// an empty element may be what came of that, and of it nothing else is true.
func (p *Problems) unreadable(list string) bool { return p.begin(list + "[") }

func (p *Problems) begin(prefix string) bool {
	return slices.ContainsFunc(*p, func(one string) bool { return strings.HasPrefix(one, prefix) })
}

// Err is nil for no problems and otherwise one Invalid error that names all.
func (p Problems) Err() error { return p.As(Invalid) }

// As is Err of another kind.
func (p Problems) As(kind Kind) error {
	if len(p) == 0 {
		return nil
	}
	return Errorf(kind, "%s", strings.Join(p, "; "))
}

// CheckName adds what is wrong with a resource name (spec 2.1).
func CheckName(p *Problems, field, name string) {
	switch {
	case name == "":
		p.Missing(field)
	case len(name) > NameMax:
		p.Add(field, "is %d characters long; at most %d are allowed", len(name), NameMax)
	case !nameForm.MatchString(name):
		p.Add(field, "must be lowercase letters, digits and hyphens, and begin and end with a letter or digit")
	}
}

// Check adds the mistakes in what a caller may set.
func (m *Metadata) Check(p *Problems) { m.CheckIn(p, "metadata.") }

// CheckIn is Check for a body that has the members of metadata elsewhere: path is
// what is in front of their names.
func (m *Metadata) CheckIn(p *Problems, path string) {
	CheckName(p, path+"name", m.Name)
	if n := utf8.RuneCountInString(m.DisplayName); n > DisplayNameMax {
		p.Add(path+"displayName", "is %d characters long; at most %d are allowed", n, DisplayNameMax)
	}
	if m.ExternalID != "" {
		CheckExternalID(p, path+"externalId", m.ExternalID)
	}
	checkLabels(p, path+"labels", m.Labels)
}

func checkLabels(p *Problems, field string, labels map[string]string) {
	if len(labels) > LabelsMax {
		p.Add(field, "has %d entries; at most %d are allowed", len(labels), LabelsMax)
	}
	for k, v := range labels {
		if k == "" || len(k) > LabelKeyMax || len(v) > LabelValueMax {
			p.Add(field, "needs keys of 1 to %d bytes and values of at most %d bytes", LabelKeyMax, LabelValueMax)
			break
		}
	}
}

// CheckExternalID adds what is wrong with an external id (spec 2.1).
func CheckExternalID(p *Problems, field, id string) {
	if len(id) > ExternalIDMax || !externalIDForm.MatchString(id) {
		p.Add(field, "must be 1 to %d letters, digits and dashes", ExternalIDMax)
	}
}
