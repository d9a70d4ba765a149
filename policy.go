package doze

import (
	"fmt"
	"slices"
	"strings"
)

// Limits of policies; those of the lists keep a record small.
const (
	PoliciesOfWorkspaceMax = 1000
	PolicyEntriesMax       = 100
)

// The types of a policy.
const (
	PolicyLocation = "location"
	PolicyFlavor   = "flavor"
	PolicyMaxToken = "maxToken"
)

// Policy is a record that agents, functions, jobs and models refer to, of which
// a platform of sandboxes has none (section 12 of the public API).
type Policy struct {
	Metadata Metadata   `json:"metadata"`
	Spec     PolicySpec `json:"spec"`
}

// PolicySpec is what a policy says: one of the lists counts, by its type.
type PolicySpec struct {
	Type          string           `json:"type"`
	Locations     []PolicyEntry    `json:"locations,omitempty"`
	Flavors       []PolicyEntry    `json:"flavors,omitempty"`
	MaxTokens     *PolicyMaxTokens `json:"maxTokens,omitempty"`
	ResourceTypes []string         `json:"resourceTypes,omitempty"`
	Sandbox       bool             `json:"sandbox,omitempty"`
}

// PolicyEntry is a location or a flavor.
type PolicyEntry struct {
	Name string `json:"name"`
	Type string `json:"type"`
}

// PolicyMaxTokens bounds a model.
type PolicyMaxTokens struct {
	Granularity string `json:"granularity,omitempty"`
	Input       int    `json:"input,omitempty"`
	Output      int    `json:"output,omitempty"`
	Total       int    `json:"total,omitempty"`
	Step        int    `json:"step,omitempty"`
	Ratio       int    `json:"ratioInputOverOutput,omitempty"`
}

// PolicyUsages names what refers to a policy.
type PolicyUsages struct {
	Agents    []string `json:"agents"`
	Functions []string `json:"functions"`
	Jobs      []string `json:"jobs"`
	Models    []string `json:"models"`
	Sandboxes []string `json:"sandboxes"`
}

var (
	policyTypes         = []string{PolicyLocation, PolicyFlavor, PolicyMaxToken}
	policyLocationTypes = []string{"location", "country", "continent"}
	policyFlavorTypes   = []string{"cpu", "gpu"}
	policyResourceTypes = []string{"model", "function", "agent", "sandbox", "application"}
)

// Check adds every mistake of p.
func (p *Policy) Check(wrong *Problems) {
	p.Metadata.Check(wrong)
	oneOf(wrong, "spec.type", p.Spec.Type, policyTypes)
	checkEntries(wrong, "spec.locations", p.Spec.Locations, policyLocationTypes)
	checkEntries(wrong, "spec.flavors", p.Spec.Flavors, policyFlavorTypes)
	if n := len(p.Spec.ResourceTypes); n > PolicyEntriesMax {
		wrong.Add("spec.resourceTypes", "has %d entries; at most %d are allowed", n, PolicyEntriesMax)
	}
	for i, t := range p.Spec.ResourceTypes {
		oneOf(wrong, fmt.Sprintf("spec.resourceTypes[%d]", i), t, policyResourceTypes)
	}
	if t := p.Spec.MaxTokens; t != nil && min(t.Input, t.Output, t.Total, t.Step, t.Ratio) < 0 {
		wrong.Add("spec.maxTokens", "must have no negative numbers")
	}
}

func checkEntries(p *Problems, field string, all []PolicyEntry, types []string) {
	if len(all) > PolicyEntriesMax {
		p.Add(field, "has %d entries; at most %d are allowed", len(all), PolicyEntriesMax)
	}
	for i, e := range all {
		if e.Name == "" || len(e.Name) > DisplayNameMax {
			p.Add(fmt.Sprintf("%s[%d].name", field, i), "must have 1 to %d bytes", DisplayNameMax)
		}
		oneOf(p, fmt.Sprintf("%s[%d].type", field, i), e.Type, types)
	}
}

func oneOf(p *Problems, field, value string, known []string) {
	if !slices.Contains(known, value) {
		p.first(field, "must be one of %s", strings.Join(known, ", "))
	}
}
