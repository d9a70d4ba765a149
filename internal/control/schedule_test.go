package control_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"net/http"
	"net/url"
	"os"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/dozehq/doze"
	"github.com/dozehq/doze/internal/fleet"
	"github.com/dozehq/doze/internal/store"
)

const schedules = "/sandboxes/a/schedules"

// plan makes a schedule of the sandbox "a".
func (p *platform) plan(body string) doze.Schedule {
	p.t.Helper()
	return want[doze.Schedule](p, 200, "POST", schedules, body)
}

// started returns what was started since the last look.
func (p *platform) started() []started {
	n := p.node
	n.mu.Lock()
	defer n.mu.Unlock()
	all := n.starts
	n.starts = nil
	return all
}

// minutes are those of the clock at which processes were started.
func minutes(all []started) (at []string) {
	for _, s := range all {
		at = append(at, s.at.UTC().Format("15:04:05"))
	}
	return at
}

func executions(p *platform) []doze.Execution {
	p.t.Helper()
	return want[[]doze.Execution](p, 200, "GET", "/sandboxes/a/schedule-executions", "")
}

func TestScheduleStartsProcesses(t *testing.T) {
	t.Parallel()
	inBubble(t, func(p *platform) {
		t := p.t
		p.create(named("a"))
		after(90 * time.Second)
		e := p.plan(`{"type":"cron","value":"*/2 * * * *","input":{"command":"date","name":"now","env":{"A":"b"},"workingDir":"/tmp"},"sandbox":"x"}`)
		made := doze.Schedule{
			ID: "schedule-0", Sandbox: "a", Type: "cron", Value: "*/2 * * * *", MaxExecutions: 100,
			Input: doze.ScheduleInput{Command: "date", Name: "now", Env: map[string]string{"A": doze.MaskedValue}, WorkingDir: "/tmp", KeepAlive: new(true), Timeout: new(600)},
		}
		if e.CreatedAt.IsZero() {
			t.Error("it has no time of creation")
		}
		e.CreatedAt = doze.Time{}
		if diff := cmp.Diff(made, e); diff != "" {
			t.Error(diff)
		}
		after(5 * time.Minute)
		all := p.started()
		if diff := cmp.Diff([]string{"00:02:00", "00:04:00", "00:06:00"}, minutes(all)); diff != "" {
			t.Fatal(diff)
		}
		var sent doze.ScheduleInput
		if err := json.Unmarshal([]byte(all[0].body), &sent); err != nil {
			t.Fatal(err)
		}
		made.Input.Env["A"] = "b"
		if diff := cmp.Diff(made.Input, sent); diff != "" {
			t.Error(diff)
		}
		ran := executions(p)
		if len(ran) != 3 || ran[0].ID <= ran[1].ID {
			t.Fatalf("%+v, want the newest first", ran)
		}
		first := doze.Execution{
			ID: "000000000001", ScheduleID: "schedule-0", Sandbox: "a", StatusCode: 200, Status: "succeeded", ProcessName: "proc-7", Timeout: 600,
			ExecutedAt: ran[2].ExecutedAt, CreatedAt: ran[2].CreatedAt,
		}
		if diff := cmp.Diff(first, ran[2]); diff != "" || !ran[2].ExecutedAt.Equal(all[0].at) {
			t.Errorf("executed at %v: %s", ran[2].ExecutedAt, diff)
		}

		want[doze.Schedule](p, 200, "DELETE", schedules+"/schedule-0", "")
		want[any](p, 404, "DELETE", schedules+"/schedule-0", "")
		after(time.Hour)
		if all := p.started(); len(all) != 0 {
			t.Errorf("a deleted schedule started %d processes", len(all))
		}
		if got := executions(p); len(got) != 3 {
			t.Errorf("of a deleted schedule there are %d executions", len(got))
		}
	})
}

func TestSchedulesOfOneTime(t *testing.T) {
	t.Parallel()
	inBubble(t, func(p *platform) {
		t := p.t
		p.create(named("a"))
		p.plan(`{"id":"at","type":"at","value":"2000-01-01T02:00:00.25+01:00","input":{"command":"a","keepAlive":false,"timeout":0}}`)
		slept := p.plan(`{"id":"later","type":"sleep","value":"2h","input":{"command":"b"}}`)
		if slept.Type != "at" || slept.Value != "2000-01-01T02:00:00Z" {
			t.Errorf("%+v, want its moment", slept)
		}
		after(time.Hour)
		if all := p.started(); len(all) != 0 {
			t.Fatalf("too early: %+v", all)
		}
		after(250 * time.Millisecond)
		all := p.started()
		if len(all) != 1 || all[0].body != `{"command":"a","keepAlive":false,"timeout":0}` {
			t.Fatalf("%+v", all)
		}
		want[any](p, 404, "GET", schedules+"/at", "")
		want[doze.Schedule](p, 200, "GET", schedules+"/later", "")
		after(time.Hour)
		if diff := cmp.Diff([]string{"02:00:00"}, minutes(p.started())); diff != "" {
			t.Error(diff)
		}
		if left := want[[]doze.Schedule](p, 200, "GET", schedules, ""); len(left) != 0 {
			t.Errorf("%+v are left", left)
		}
		if ran := executions(p); len(ran) != 2 || ran[0].ScheduleID != "later" || ran[1].Timeout != 0 {
			t.Errorf("%+v", ran)
		}
	})
}

// TestSchedulesThatFail wants every reason recorded, and the next time tried.
func TestSchedulesThatFail(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		harm   func(*platform)
		status int
		says   string
	}{
		"refused":     {func(p *platform) { p.node.refuse = http.StatusUnprocessableEntity }, 422, "sandbox a: it refused the process: not today"},
		"no answer":   {func(p *platform) { p.node.set("start", doze.Errorf(doze.Unavailable, "no room")) }, 0, "sandbox a: no room"},
		"our mistake": {func(p *platform) { p.node.set("start", fmt.Errorf("10.0.0.1 is odd")) }, 0, "sandbox a: internal error"},
		"disabled":    {func(p *platform) { want[any](p, 200, "PUT", "/sandboxes/a", `{"spec":{"enabled":false}}`) }, 0, "sandbox a: it is disabled"},
		"hanging":     {func(p *platform) { p.node.block = make(chan struct{}) }, 0, "sandbox a: it did not start the process within 2m0s"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			inBubble(t, func(p *platform) {
				t := p.t
				p.create(named("a"))
				p.plan(`{"type":"cron","value":"0 1 * * *","input":{"command":"a"}}`)
				tt.harm(p)
				after(time.Hour + 3*time.Minute)
				ran := executions(p)
				if len(ran) != 1 || ran[0].Status != "failed" || ran[0].StatusCode != tt.status || ran[0].Error != tt.says {
					t.Errorf("%+v", ran)
				}
				want[doze.Schedule](p, 200, "GET", schedules+"/schedule-0", "")
			})
		})
	}
}

// TestSchedulesAreLimited keeps a ring of executions, and starts no more at a
// time than there is room for.
func TestSchedulesAreLimited(t *testing.T) {
	t.Parallel()
	inBubble(t, func(p *platform) {
		t := p.t
		p.create(named("a"))
		p.plan(`{"id":"often","type":"cron","value":"* * * * *","maxExecutions":3,"input":{"command":"a"}}`)
		p.plan(`{"id":"seldom","type":"cron","value":"5 * * * *","input":{"command":"a"}}`)
		after(10 * time.Minute)
		count := map[string]int{}
		for _, e := range executions(p) {
			count[e.ScheduleID]++
		}
		if diff := cmp.Diff(map[string]int{"often": 3, "seldom": 1}, count); diff != "" {
			t.Error(diff)
		}
		for range doze.SchedulesMax - 2 {
			p.plan(`{"type":"cron","value":"0 3 * * *","input":{"command":"b"}}`)
		}
		if w := p.do("POST", schedules, `{"type":"cron","value":"0 3 * * *","input":{"command":"b"}}`); w.Code != 429 || !strings.Contains(w.Body.String(), "limit") {
			t.Errorf("%d %s", w.Code, w.Body)
		}
		want[any](p, 200, "DELETE", schedules+"/often", "")
		after(2*time.Hour + 49*time.Minute)
		p.started()
		block := make(chan struct{})
		p.node.mu.Lock()
		p.node.block = block
		p.node.mu.Unlock()
		after(2 * time.Minute)
		p.node.mu.Lock()
		p.node.block = nil
		p.node.mu.Unlock()
		close(block)
		after(time.Second) // the rest follow as soon as there is room
		if all := p.started(); len(all) != doze.SchedulesMax-2 {
			t.Errorf("%d were started", len(all))
		}
	})
}

// TestSchedulesOutliveTheDaemon stops it: what was due meanwhile is started
// once, and what was being started is known to have been cut short.
func TestSchedulesOutliveTheDaemon(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		p := start(t, true)
		p.create(named("a"))
		p.plan(`{"id":"often","type":"cron","value":"*/10 * * * *","input":{"command":"a","env":{"TOKEN":"hush-hush"}}}`)
		p.plan(`{"id":"once","type":"at","value":"2000-01-01T00:05:00Z","input":{"command":"b"}}`)
		p.plan(`{"id":"cut","type":"at","value":"2000-01-01T00:00:30Z","input":{"command":"c"}}`)
		p.node.mu.Lock()
		p.node.block = make(chan struct{})
		p.node.mu.Unlock()
		after(31 * time.Second)
		if ran := executions(p); len(ran) != 0 {
			t.Errorf("what is being started shows as %+v", ran)
		}
		p.stop()
		p.node.mu.Lock()
		p.node.block = nil
		p.node.mu.Unlock()
		for _, file := range []string{p.file, p.file + "-wal"} {
			if b, err := os.ReadFile(file); err == nil && bytes.Contains(b, []byte("hush-hush")) {
				t.Errorf("a variable can be read in %s", file)
			}
		}
		after(2*time.Hour + 15*time.Minute)
		p.open(true)
		after(time.Second)
		if all := p.started(); len(all) != 2 {
			t.Errorf("%+v, want one of each that was due", all)
		}
		ran := executions(p)
		if len(ran) != 3 || ran[2].ScheduleID != "cut" || ran[2].Status != "failed" || !strings.Contains(ran[2].Error, "the platform stopped") {
			t.Errorf("%+v", ran)
		}
		after(10 * time.Minute)
		if diff := cmp.Diff([]string{"02:20:00"}, minutes(p.started())); diff != "" {
			t.Error(diff)
		}
		p.stop()
	})
}

// TestSchedulesOfAnUpgrade has the node stop before control, as it does: what is
// due then is started by the next.
func TestSchedulesOfAnUpgrade(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		p := start(t, true)
		p.create(named("a"))
		p.plan(`{"id":"often","type":"cron","value":"*/10 * * * *","input":{"command":"a"}}`)
		p.plan(`{"id":"once","type":"at","value":"2000-01-01T00:10:00Z","input":{"command":"b","env":{"A":"b"}}}`)
		p.node.set("start", fleet.ErrStopping)
		after(11 * time.Minute)
		p.stop()
		p.node.set("start", nil)
		after(time.Minute)
		p.open(true)
		after(time.Second)
		all := p.started()
		if diff := cmp.Diff([]string{"00:12:00", "00:12:00"}, minutes(all)); diff != "" {
			t.Error(diff)
		}
		ran := executions(p)
		if len(ran) != 2 || ran[0].Status != "succeeded" || ran[1].Status != "succeeded" {
			t.Errorf("%+v", ran)
		}
		want[any](p, 404, "GET", schedules+"/once", "")
		p.stop()
	})
}

func TestSchedulesEndWithTheirSandbox(t *testing.T) {
	t.Parallel()
	inBubble(t, func(p *platform) {
		t := p.t
		p.create(`{"metadata":{"name":"a"},"spec":{"runtime":{"ttl":"90m"}}}`)
		p.plan(`{"type":"cron","value":"0 * * * *","input":{"command":"a"}}`)
		after(85 * time.Minute)
		if len(p.started()) != 1 {
			t.Error("it was not started")
		}
		after(time.Hour)
		if all := p.started(); len(all) != 0 {
			t.Errorf("of a sandbox that has ended %d were started", len(all))
		}
		p.create(named("a"))
		if all := want[[]doze.Schedule](p, 200, "GET", schedules, ""); len(all) != 0 {
			t.Errorf("the next of its name has %+v", all)
		}
		for _, path := range []string{"/schedules", "/schedule-executions"} {
			if all := want[[]any](p, 200, "GET", path, ""); len(all) != 0 {
				t.Errorf("%s has %+v", path, all)
			}
		}
	})
}

func TestScheduleUpdate(t *testing.T) {
	t.Parallel()
	inBubble(t, func(p *platform) {
		t := p.t
		p.create(named("a"))
		p.plan(`{"id":"s","type":"cron","value":"30 * * * *","input":{"command":"a","env":{"A":"1","B":"2"},"timeout":7}}`)
		read := want[doze.Schedule](p, 200, "GET", schedules+"/s", "")
		// All of what was read is put back, as clients do.
		read.Input.Command = "b"
		delete(read.Input.Env, "B")
		body, err := json.Marshal(read)
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(read, want[doze.Schedule](p, 200, "PUT", schedules+"/s", string(body))); diff != "" {
			t.Error(diff)
		}
		after(31 * time.Minute)
		if all := p.started(); len(all) != 1 || all[0].body != `{"command":"b","env":{"A":"1"},"keepAlive":true,"timeout":7}` {
			t.Errorf("%+v", all)
		}
		// Another time; what is null has its default again.
		changed := want[doze.Schedule](p, 200, "PUT", schedules+"/s", `{"value":"40 * * * *","input":{"timeout":null}}`)
		if *changed.Input.Timeout != 600 || changed.Input.Command != "b" {
			t.Errorf("%+v", changed)
		}
		after(29 * time.Minute)
		if diff := cmp.Diff([]string{"00:40:00"}, minutes(p.started())); diff != "" {
			t.Error(diff)
		}
		want[doze.Schedule](p, 200, "PUT", schedules+"/s", `{"type":"sleep","value":"5m"}`)
		after(6 * time.Minute)
		if diff := cmp.Diff([]string{"01:05:00"}, minutes(p.started())); diff != "" {
			t.Error(diff)
		}
		want[any](p, 404, "PUT", schedules+"/s", `{}`)
	})
}

func TestScheduleMistakes(t *testing.T) {
	t.Parallel()
	p := start(t, false)
	p.create(named("a"))
	p.plan(`{"id":"there","type":"cron","value":"0 0 1 1 *","input":{"command":"a"}}`)
	const good = `"type":"cron","value":"* * * * *"`
	many, err := json.Marshal(map[string]any{"type": "cron", "value": "* * * * *", "input": map[string]any{
		"command": strings.Repeat("x", doze.CommandMax+1), "name": strings.Repeat("n", 257), "workingDir": strings.Repeat("d", 5000),
	}})
	if err != nil {
		t.Fatal(err)
	}
	for body, tt := range map[string]struct {
		status int
		says   []string
	}{
		`{}`: {400, []string{"type must be", "input.command is required"}},
		`{"id":"A B","type":"daily","maxExecutions":-1,"input":{"command":" ","timeout":-1,"env":{"":"x"}}}`: {400, []string{"id must", "type must", "maxExecutions", "command", "timeout", "env"}},
		`{"type":"cron","value":"* * *","input":{"command":"a"}}`:                                            {400, []string{"five fields"}},
		`{"type":"at","value":"soon","input":{"command":"a"}}`:                                               {400, []string{"not a time"}},
		`{"type":"at","value":"2001-01-01","input":{"command":"a"}}`:                                         {400, []string{"in the past"}},
		`{"type":"sleep","value":"2 hours","input":{"command":"a"}}`:                                         {400, []string{"not a duration"}},
		`{` + good + `,"input":{"command":7,"timeout":"x","keepAlive":"yes","env":[]}}`:                      {400, []string{"command must be a string", "timeout must be", "keepAlive must be", "env must be"}},
		`{` + good + `,"input":{"command":"a\u0000"}}`:                                                       {400, []string{"NUL"}},
		`{` + good + `,"input":{"command":"a","env":{"A":"********"}}}`:                                      {400, []string{"masked"}},
		`{` + good + `,"maxExecutions":1001,"input":{"command":"a"}}`:                                        {400, []string{"1 to 1000"}},
		string(many): {400, []string{"input.command is", "input.name is", "input.workingDir is"}},
		`{"id":"there",` + good + `,"input":{"command":"a"}}`: {409, []string{"already"}},
		`[]`: {400, []string{"object"}},
	} {
		w := p.do("POST", schedules, body)
		checkError(t, w)
		for _, says := range tt.says {
			if w.Code != tt.status || !strings.Contains(w.Body.String(), says) {
				t.Errorf("%.200s: %d %s, want %q", body, w.Code, w.Body, says)
			}
		}
	}
	want[any](p, 400, "PUT", schedules+"/there", `{"id":"else"}`)
	want[any](p, 400, "PUT", schedules+"/there", `{"type":"at"}`)
	want[any](p, 404, "PUT", schedules+"/none", `{}`)
	want[any](p, 404, "GET", "/sandboxes/none/schedules", "")
	want[any](p, 404, "GET", "/sandboxes/none/schedule-executions", "")
	if all := want[[]doze.Schedule](p, 200, "GET", schedules, ""); len(all) != 1 {
		t.Errorf("%+v", all)
	}
}

func TestScheduleLists(t *testing.T) {
	t.Parallel()
	inBubble(t, func(p *platform) {
		t := p.t
		paged := []string{"Blaxel-Version", "2026-04-28"}
		p.create(named("a"))
		p.create(named("b"))
		for i := range 25 {
			p.plan(fmt.Sprintf(`{"id":"s-%d","type":"cron","value":"%d 1 * * *","input":{"command":"a","env":{"K":"v"}}}`, i, i))
			after(time.Second)
		}
		want[any](p, 200, "POST", "/sandboxes/b/schedules", `{"type":"at","value":"2001-01-01","input":{"command":"a"}}`)
		type list struct {
			Data []doze.Schedule
			Meta struct {
				HasMore    bool
				NextCursor string
				Total      int
			}
		}
		one := want[list](p, 200, "GET", schedules, "", paged...)
		two := want[list](p, 200, "GET", schedules+"?cursor="+one.Meta.NextCursor, "", paged...)
		if len(one.Data) != 20 || one.Data[0].ID != "s-24" || one.Meta.Total != 25 || len(two.Data) != 5 || two.Meta.HasMore {
			t.Errorf("pages of %d and %d, total %d", len(one.Data), len(two.Data), one.Meta.Total)
		}
		for query, n := range map[string]int{
			"": 20, "?limit=500": 26, "?type=at": 1, "?type=other&limit=100": 26, "?sandbox=b": 1, "?sandbox=none": 0, "?q=s-1&limit=100": 11, "?sort=createdAt:asc&limit=2": 2,
		} {
			if got := want[list](p, 200, "GET", "/schedules"+query, "", paged...); len(got.Data) != n || got.Meta.Total != 26 {
				t.Errorf("/schedules%s has %d of %d, want %d", query, len(got.Data), got.Meta.Total, n)
			}
		}
		for _, query := range []string{"?sort=name:asc", "?limit=0", "?cursor=x", "?cursor=" + one.Meta.NextCursor} {
			checkError(t, p.do("GET", "/schedules"+query, "", paged...))
		}
		after(2 * time.Hour)
		type runs struct{ Data []doze.Execution }
		for query, n := range map[string]int{
			"?limit=100": 25, "?status=failed": 0, "?status=Succeeded&limit=100": 25, "?schedule=s-3": 1, "?sandbox=b": 0,
			"?since=2000-01-01T01:05:00Z&until=2000-01-01T01:06:00Z": 2, "?until=2000-01-01T00:59:59Z": 0,
		} {
			if got := want[runs](p, 200, "GET", "/schedule-executions"+query, "", paged...); len(got.Data) != n {
				t.Errorf("/schedule-executions%s has %d, want %d", query, len(got.Data), n)
			}
		}
		for _, query := range []string{"?status=pending", "?since=x", "?sort=name:desc"} {
			checkError(t, p.do("GET", "/schedule-executions"+query, "", paged...))
		}
		m := want[doze.ScheduleMetrics](p, 200, "GET", "/schedules/metrics?since="+url.QueryEscape("2000-01-01T01:05:30Z"), "")
		if m.Executions != 20 || m.ExecutionsByStatus["succeeded"] != 20 || m.ExecutionsByStatus["failed"] != 0 || m.Schedules != 26 || m.Sandboxes != 2 || m.Since.Second() != 0 {
			t.Errorf("%+v", m)
		}
		for _, query := range []string{"?since=x", "?since=1999-12-01", "?since=2000-01-01T01:05:00Z&until=2000-01-01T01:05:00Z"} {
			checkError(t, p.do("GET", "/schedules/metrics"+query, ""))
		}

		shown := want[doze.Schedule](p, 200, "GET", schedules+"/s-1?show_secrets=true", "")
		if shown.Input.Env["K"] != "v" || one.Data[0].Input.Env["K"] != doze.MaskedValue {
			t.Errorf("%v, %v", shown.Input.Env, one.Data[0].Input.Env)
		}
		looks := p.keyFor("main", time.Time{}, "sandboxes:get", "sandboxes:list")
		for _, path := range []string{schedules + "/s-1", schedules, "/schedules"} {
			want[any](p, 200, "GET", path, "", as(looks)...)
			want[any](p, 403, "GET", path+"?show_secrets=true", "", as(looks)...)
		}
	})
}

// TestSchedulesFollowTheClock sets it back, which this process learns by a call.
func TestSchedulesFollowTheClock(t *testing.T) {
	t.Parallel()
	inBubble(t, func(p *platform) {
		t := p.t
		p.create(named("a"))
		p.plan(`{"id":"s","type":"cron","value":"*/10 * * * *","input":{"command":"a"}}`)
		// As if it had been planned when the clock was three hours ahead.
		sb, err := p.store.SandboxByName(t.Context(), "main", "a")
		if err != nil {
			t.Fatal(err)
		}
		record, err := p.store.Schedule(t.Context(), sb.UID, "s")
		if err != nil {
			t.Fatal(err)
		}
		if _, err := p.store.ChangeSchedule(t.Context(), sb.UID, "s", func(e *store.Schedule) error {
			e.Due = record.Due.Add(3 * time.Hour)
			return nil
		}); err != nil {
			t.Fatal(err)
		}
		after(15 * time.Minute)
		if all := p.started(); len(all) != 0 {
			t.Fatalf("%+v", all)
		}
		p.rooms.ClockStepped()
		after(10 * time.Minute)
		if diff := cmp.Diff([]string{"00:20:00"}, minutes(p.started())); diff != "" {
			t.Error(diff)
		}
	})
}
