package tenancy_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/dozehq/doze"
	"github.com/dozehq/doze/internal/plane/planetest"
)

func TestPolicies(t *testing.T) {
	t.Parallel()
	p := planetest.Start(t, false)
	made := planetest.Want[doze.Policy](p, 200, "POST", "/policies", `{"metadata":{"name":"near","labels":{"k":"v"},"plan":"x"},"spec":{"type":"location",
		"locations":[{"type":"country","name":"de"}],"resourceTypes":["sandbox"],"maxTokens":{"input":5}}}`)
	if made.Metadata.Workspace != "main" || made.Metadata.CreatedBy != "admin" || made.Metadata.Plan != doze.Plan || made.Spec.Locations[0].Name != "de" {
		t.Errorf("%+v", made)
	}
	if diff := cmp.Diff(made, planetest.Want[doze.Policy](p, 200, "GET", "/policies/near", "")); diff != "" {
		t.Error(diff)
	}
	changed := planetest.Want[doze.Policy](p, 200, "PUT", "/policies/near", `{"metadata":{"displayName":"Near"},"spec":{"locations":[]}}`)
	if changed.Metadata.DisplayName != "Near" || changed.Metadata.Labels["k"] != "v" || len(changed.Spec.Locations) != 0 || changed.Spec.MaxTokens.Input != 5 {
		t.Errorf("%+v", changed)
	}
	turned := planetest.Want[doze.Policy](p, 200, "PUT", "/policies/near", `{"spec":{"type":"maxToken","maxTokens":{"total":7}}}`)
	if turned.Spec.MaxTokens.Total != 7 || turned.Spec.MaxTokens.Input != 0 {
		t.Errorf("another type: %+v", turned.Spec)
	}
	back := planetest.Want[doze.Policy](p, 200, "PUT", "/policies/near", `{"spec":{"type":"location","locations":[{"type":"country","name":"fr"}]}}`)
	if back.Spec.MaxTokens != nil || len(back.Spec.Locations) != 1 || len(back.Spec.ResourceTypes) != 1 {
		t.Errorf("and back: %+v", back.Spec)
	}
	for i := range 3 {
		planetest.Want[any](p, 200, "POST", "/policies", fmt.Sprintf(`{"metadata":{"name":"p-%d"},"spec":{"type":"flavor"}}`, i))
	}
	type list struct {
		Data []doze.Policy
		Meta struct {
			NextCursor string
			Total      int
		}
	}
	paged := []string{"Blaxel-Version", "2026-04-28"}
	one := planetest.Want[list](p, 200, "GET", "/policies?limit=3&sort=name:asc", "", paged...)
	two := planetest.Want[list](p, 200, "GET", "/policies?limit=3&sort=name:asc&cursor="+one.Meta.NextCursor, "", paged...)
	if len(one.Data) != 3 || len(two.Data) != 1 || two.Data[0].Metadata.Name != "p-2" || one.Meta.Total != 4 {
		t.Errorf("%+v, %+v", one, two)
	}
	if found := planetest.Want[[]doze.Policy](p, 200, "GET", "/policies?q=NEA", ""); len(found) != 1 {
		t.Errorf("%+v", found)
	}
	if u := planetest.Want[map[string][]string](p, 200, "GET", "/policies/near/usages", ""); len(u) != 5 || len(u["sandboxes"]) != 0 {
		t.Errorf("%v", u)
	}
	for _, tt := range []struct {
		status                   int
		method, path, body, says string
	}{
		{400, "POST", "/policies", `{}`, "metadata.name is required; spec.type must be one of"},
		{400, "POST", "/policies", `{"metadata":{"name":"x"},"spec":{"type":"flavor","flavors":[{"type":"tpu"}],"resourceTypes":["house"]}}`, "spec.flavors[0].name must have 1 to 63 bytes; spec.flavors[0].type must be one of cpu, gpu; spec.resourceTypes[0]"},
		{400, "POST", "/policies", `{"metadata":{"name":"x"},"spec":{"type":"maxToken","maxTokens":{"input":-1}}}`, "negative"},
		{400, "PUT", "/policies/near", `{"metadata":{"name":"far"}}`, "cannot be changed"},
		{409, "POST", "/policies", `{"metadata":{"name":"near"},"spec":{"type":"flavor"}}`, "already exists"},
		{404, "PUT", "/policies/none", `{}`, "no such policy"},
		{404, "GET", "/policies/none/usages", ``, "no such policy"},
	} {
		w := p.Do(tt.method, tt.path, tt.body)
		planetest.CheckError(t, w)
		if w.Code != tt.status || !strings.Contains(w.Body.String(), tt.says) {
			t.Errorf("%s %s %s: %d %s, want %d %q", tt.method, tt.path, tt.body, w.Code, w.Body, tt.status, tt.says)
		}
	}
	planetest.Want[doze.Policy](p, 200, "DELETE", "/policies/near", "")
	planetest.Want[any](p, 404, "DELETE", "/policies/near", "")
}
