package doze

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"math"
	"slices"
	"strconv"
	"strings"
)

// ValueSource is where a variable gets its value from: one of the members is
// set. It is the valueFrom of Kubernetes.
type ValueSource struct {
	Field    *FieldRef    `json:"fieldRef"`
	Resource *ResourceRef `json:"resourceFieldRef"`
	Secret   *SecretRef   `json:"secretKeyRef"`
}

// FieldRef names a field of the sandbox.
type FieldRef struct {
	APIVersion string `json:"apiVersion"`
	Path       string `json:"fieldPath"`
}

// ResourceRef names an amount that the sandbox has.
type ResourceRef struct {
	Container string `json:"containerName"`
	Resource  string `json:"resource"`
	Divisor   any    `json:"divisor"` // a number or a text; absent is 1
}

// SecretRef names a value in a secret of the workspace. If it is Optional and
// not there, the variable is left out.
type SecretRef struct {
	Name     string `json:"name"`
	Key      string `json:"key"`
	Optional bool   `json:"optional"`
}

// fields are what a fieldRef may name. A namespace of Kubernetes is a
// workspace here.
var fields = map[string]func(*Sandbox) string{
	"metadata.name":        func(s *Sandbox) string { return s.Metadata.Name },
	"metadata.namespace":   func(s *Sandbox) string { return s.Metadata.Workspace },
	"metadata.workspace":   func(s *Sandbox) string { return s.Metadata.Workspace },
	"metadata.displayName": func(s *Sandbox) string { return s.Metadata.DisplayName },
	"metadata.externalId":  func(s *Sandbox) string { return s.Metadata.ExternalID },
	"spec.region":          func(s *Sandbox) string { return s.Spec.Region },
	"spec.runtime.image":   func(s *Sandbox) string { return s.Spec.Runtime.Image },
}

// labelField is a fieldRef that names a label.
var labelField = formOf(`^metadata\.labels\['([^']+)'\]$`)

// resources are what a resourceFieldRef may name: the amount, and the divisors
// that it may have.
var resources = map[string]struct {
	amount   func(Megabytes) float64
	divisors map[string]float64
}{
	"memory": {
		func(m Megabytes) float64 { return float64(m.Bytes()) },
		map[string]float64{"1": 1, "1k": 1e3, "1Ki": 1 << 10, "1M": 1e6, "1Mi": 1 << 20, "1G": 1e9, "1Gi": 1 << 30},
	},
	"cpu": {Megabytes.CPUs, map[string]float64{"1": 1, "1m": 1e-3}},
}

// anyDivisor has the divisors of all resources.
var anyDivisor = func() map[string]float64 {
	all := map[string]float64{}
	for _, r := range resources {
		maps.Copy(all, r.divisors)
	}
	return all
}()

// ParseValueSource reads a valueFrom. Its errors say what is wrong with it.
func ParseValueSource(raw []byte) (ValueSource, error) {
	var v ValueSource
	var members map[string]json.RawMessage
	if err := json.Unmarshal(raw, &members); err != nil {
		return v, fmt.Errorf("must be an object")
	}
	known := []string{"fieldRef", "resourceFieldRef", "secretKeyRef"}
	maps.DeleteFunc(members, func(_ string, m json.RawMessage) bool { return string(bytes.TrimSpace(m)) == "null" })
	if len(members) != 1 {
		return v, fmt.Errorf("must have exactly one of %s", strings.Join(known, ", "))
	}
	for name := range members {
		if !slices.Contains(known, name) {
			return v, fmt.Errorf("has the unknown member %q; known are %s", clip(name), strings.Join(known, ", "))
		}
	}
	if err := json.Unmarshal(raw, &v); err != nil {
		return v, fmt.Errorf("has a value of a wrong type")
	}
	switch {
	case v.Field != nil:
		return v, v.Field.check()
	case v.Resource != nil:
		_, err := v.Resource.value(MemoryDefault)
		return v, err
	case v.Secret.Name == "" || v.Secret.Key == "":
		return v, fmt.Errorf("secretKeyRef needs name and key")
	}
	return v, nil
}

func (f *FieldRef) check() error {
	if _, ok := fields[f.Path]; ok || labelField.MatchString(f.Path) {
		return nil
	}
	return fmt.Errorf("has the fieldPath %q; known are %s and metadata.labels['<key>']",
		clip(f.Path), strings.Join(slices.Sorted(maps.Keys(fields)), ", "))
}

// Value returns the field of s. One that s does not have is empty.
func (f *FieldRef) Value(s *Sandbox) string {
	if label := labelField().FindStringSubmatch(f.Path); label != nil {
		return s.Metadata.Labels[label[1]]
	}
	if field, ok := fields[f.Path]; ok {
		return field(s)
	}
	return ""
}

// Value returns the amount that s has, in units of the divisor and rounded up.
func (r *ResourceRef) Value(s *Sandbox) string {
	n, err := r.value(s.Spec.Runtime.Memory)
	if err != nil {
		return ""
	}
	return strconv.FormatInt(n, 10)
}

func (r *ResourceRef) value(m Megabytes) (int64, error) {
	_, name, _ := strings.Cut(r.Resource, ".")
	res, ok := resources[name]
	var wrong []string
	if !ok || r.Resource != "limits."+name && r.Resource != "requests."+name {
		wrong = append(wrong, fmt.Sprintf("has the resource %q; known are limits.cpu, limits.memory, requests.cpu and requests.memory", clip(r.Resource)))
		name, res.divisors = "any", anyDivisor
	}
	text := r.divisor()
	by, ok := res.divisors[text]
	if !ok {
		wrong = append(wrong, fmt.Sprintf("has the divisor %q; known for %s are %s", clip(text), name, strings.Join(slices.Sorted(maps.Keys(res.divisors)), ", ")))
	}
	if len(wrong) > 0 {
		return 0, errors.New(strings.Join(wrong, "; it "))
	}
	return int64(math.Ceil(res.amount(m) / by)), nil
}

// divisor is the divisor as a text.
func (r *ResourceRef) divisor() (text string) {
	switch d := r.Divisor.(type) {
	case nil:
	case float64:
		text = strconv.FormatFloat(d, 'f', -1, 64)
	default:
		text = fmt.Sprint(d)
	}
	if text == "" || text == "0" {
		text = "1"
	}
	return text
}

// Text is the value of e as it is written in e; none is empty.
func (e *Env) Text() string {
	if e.Value == nil {
		return ""
	}
	return *e.Value
}

// From reports whether e takes its value from somewhere.
func (e *Env) From() bool { return len(e.ValueFrom) > 0 && string(e.ValueFrom) != "null" }
