package control_test

import (
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/dozehq/doze"
	"github.com/dozehq/doze/internal/plane/planetest"
)

// TestLogs: what the platform knows of workloads, in the form of a log.
func TestLogs(t *testing.T) {
	t.Parallel()
	planetest.InBubble(t, func(p *planetest.Platform) {
		t := p.T
		p.Create(`{"metadata":{"name":"a"},"spec":{"lifecycle":{"terminatedRetention":"1h"}}}`)
		planetest.After(time.Minute)
		disabled := time.Now()
		planetest.Want[any](p, 200, "PUT", "/sandboxes/a", `{"spec":{"enabled":false}}`)
		planetest.After(time.Minute)
		ended := time.Now()
		planetest.Want[any](p, 200, "DELETE", "/sandboxes/a", "")
		planetest.After(time.Minute)
		moment := func(at time.Time) string { return url.QueryEscape(at.Format(time.RFC3339)) }
		for query, says := range map[string]map[string]string{
			"workloadIds=a":      {"a": "has ended|deleted the sandbox|is disabled|being disabled|is ready|being started"},
			"workloadIds=none,a": {"a": "has ended|deleted the sandbox|is disabled|being disabled|is ready|being started", "none": ""},
			"workloadIds=a&resourceType=sandboxes&type=all&start=" + moment(disabled):             {"a": "has ended|deleted the sandbox|is disabled|being disabled"},
			"workloadIds=a&resourceType=sandbox&end=" + moment(disabled):                          {"a": "is ready|being started"},
			"workloadIds=a&resourceType=sandbox&end=" + moment(ended) + "&start=" + moment(ended): {"a": ""},
			"workloadIds=a&resourceType=images":                                                   {"a": ""},
		} {
			got := map[string]string{}
			for name, log := range planetest.Want[map[string]doze.Log](p, 200, "GET", "/observability/logs?"+query, "") {
				var words []string
				for _, line := range log.Lines {
					if line.Severity != doze.LogInfo || line.Timestamp.IsZero() {
						t.Errorf("a line is %+v", line)
					}
					words = append(words, line.Message)
				}
				if got[name] = strings.Join(words, "|"); log.Total != len(log.Lines) {
					t.Errorf("%d of %d lines", log.Total, len(log.Lines))
				}
			}
			if len(got) != len(says) {
				t.Errorf("%s: %v", query, got)
			}
			for name, says := range says {
				lines, parts := strings.Split(got[name], "|"), strings.Split(says, "|")
				if len(lines) != len(parts) {
					t.Errorf("%s: %v", query, lines)
					continue
				}
				for i, part := range parts {
					if !strings.Contains(lines[i], part) || part == "" && lines[i] != "" {
						t.Errorf("%s: line %d is %q, not %q", query, i, lines[i], part)
					}
				}
			}
		}
		all := planetest.Want[map[string]any](p, 400, "GET", "/observability/logs?start=soon&end=later", "")
		for _, part := range []string{"start", "end", "workloadIds"} {
			if text, _ := all["message"].(string); !strings.Contains(text, part) {
				t.Errorf("%s is missing in %q", part, text)
			}
		}
		planetest.Want[any](p, 400, "GET", "/observability/logs?workloadIds="+strings.Repeat("a,", doze.LogWorkloadsMax+1), "")
		planetest.Want[any](p, 400, "GET", "/observability/logs", "")

		p.Create(planetest.Named("b"))
		p.Node.With("b", func(uid string, _ *planetest.Machine) { p.Node.Move(uid, doze.Failed, "it broke") })
		planetest.After(time.Second)
		broken := planetest.Want[map[string]doze.Log](p, 200, "GET", "/observability/logs?workloadIds=b", "")["b"].Lines
		if diff := cmp.Diff([]string{"it broke", doze.LogError}, []string{broken[0].Message, broken[0].Severity}); diff != "" {
			t.Error(diff)
		}
	})
}
