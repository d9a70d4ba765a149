package control_test

import (
	"fmt"
	"net/url"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/dozehq/doze"
	"github.com/dozehq/doze/internal/fleet"
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

// texts asks for the log of a sandbox, and returns the messages.
func texts(p *planetest.Platform, query string) (all []string, log doze.Log) {
	p.T.Helper()
	log = planetest.Want[map[string]doze.Log](p, 200, "GET", "/observability/logs?workloadIds=a&"+query, "")["a"]
	for _, l := range log.Lines {
		all = append(all, l.Message)
	}
	return all, log
}

// TestLogsOfProcesses: output stands between the events, in one order. Callers find it
// by what they know of it, page by page.
func TestLogsOfProcesses(t *testing.T) {
	t.Parallel()
	planetest.InBubble(t, func(p *planetest.Platform) {
		t := p.T
		p.Create(planetest.Named("a"))
		for i := range 5 {
			planetest.After(time.Minute)
			line := fleet.LogLine{
				LogPosition: fleet.LogPosition{At: time.Now().UnixNano(), Origin: "m"},
				Severity:    doze.LogInfo, Process: "app", Stream: "stdout", Text: fmt.Sprintf("Line %d", i),
			}
			if i == 3 {
				line.Severity, line.Stream = doze.LogError, "stderr"
			}
			p.Node.Write("main", "a", line)
		}
		planetest.After(time.Minute)
		planetest.Want[any](p, 200, "PUT", "/sandboxes/a", `{"spec":{"enabled":false}}`)
		for query, want := range map[string]string{
			"type=process":                      "Line 4|Line 3|Line 2|Line 1|Line 0",
			"type=process&order=asc&limit=2":    "Line 0|Line 1",
			"search=lINE%203":                   "Line 3",
			"severity=error,fatal":              "Line 3",
			"process=app&severity=info&limit=2": "Line 4|Line 2",
			"process=other":                     "",
		} {
			if got, _ := texts(p, query); strings.Join(got, "|") != want {
				t.Errorf("%s: %q", query, got)
			}
		}
		whole, log := texts(p, "")
		if len(whole) != 9 || !strings.HasPrefix(whole[2], "Line 4") || log.Next != "" || log.Lines[2].Process != "app" || log.Lines[2].Stream != "stdout" {
			t.Errorf("%q, %+v", whole, log)
		}
		var paged []string
		for cursor := ""; ; {
			got, log := texts(p, "limit=2&cursor="+cursor)
			paged = append(paged, got...)
			if cursor = log.Next; cursor == "" {
				break
			}
		}
		if diff := cmp.Diff(whole, paged); diff != "" {
			t.Error(diff)
		}
		var followed []string
		cursor := ""
		for range 6 {
			got, log := texts(p, "order=asc&limit=2&cursor="+cursor)
			followed = append(followed, got...)
			cursor = log.Next
		}
		slices.Reverse(followed)
		if diff := cmp.Diff(whole, followed); diff != "" {
			t.Error(diff)
		}
		if got, _ := texts(p, "order=asc&cursor="+cursor); len(got) != 0 {
			t.Errorf("nothing happened, and yet there is %q", got)
		}
		for query, part := range map[string]string{
			"type=bricks": "type", "severity=loud": "severity", "order=up": "order", "limit=0": "limit", "cursor=x": "cursor",
			"cursor=" + cursor: "cursor", "search=" + strings.Repeat("x", doze.LogSearchMax+1): "search",
		} {
			bad := planetest.Want[map[string]any](p, 400, "GET", "/observability/logs?workloadIds=a&"+query, "")
			if text, _ := bad["message"].(string); !strings.Contains(text, part) {
				t.Errorf("%s: %q", query, text)
			}
		}
		p.Node.Set("logs", doze.Errorf(doze.Unavailable, "no node"))
		planetest.Want[any](p, 503, "GET", "/observability/logs?workloadIds=a", "")
	})
}

// TestLogsOutlive: the log of a sandbox is there when its record is not, and ends with
// its workspace. Nobody else sees it.
func TestLogsOutlive(t *testing.T) {
	t.Parallel()
	planetest.InBubble(t, func(p *planetest.Platform) {
		t := p.T
		p.Create(`{"metadata":{"name":"a"},"spec":{"lifecycle":{"terminatedRetention":"1m"}}}`)
		planetest.After(time.Minute)
		p.Node.Write("main", "a", fleet.LogLine{LogPosition: fleet.LogPosition{At: time.Now().UnixNano(), Origin: "m"}, Severity: doze.LogInfo, Stream: "stdout", Text: "hello"})
		p.Node.Write("other", "a", fleet.LogLine{LogPosition: fleet.LogPosition{At: time.Now().UnixNano(), Origin: "n"}, Severity: doze.LogInfo, Stream: "stdout", Text: "secret"})
		planetest.After(time.Minute)
		planetest.Want[any](p, 200, "DELETE", "/sandboxes/a", "")
		planetest.After(time.Second)
		before, _ := texts(p, "")
		planetest.After(time.Hour)
		planetest.Want[any](p, 404, "GET", "/sandboxes/a", "")
		after, _ := texts(p, "")
		if diff := cmp.Diff(before, after); diff != "" || !slices.Contains(after, "hello") || slices.Contains(after, "secret") {
			t.Errorf("%q, %s", after, diff)
		}
		p.Create(planetest.Named("a")) // another one of the name
		if now, _ := texts(p, ""); len(now) != len(after)+2 {
			t.Errorf("with a new one it is %q", now)
		}
	})
}
