package schedule_test

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
	"github.com/dozehq/doze/internal/plane/planetest"
	"github.com/dozehq/doze/internal/store"
)

// minutes are those of the clock at which processes were started.
func minutes(all []planetest.Started) (at []string) {
	for _, s := range all {
		at = append(at, s.At.UTC().Format("15:04:05"))
	}
	return at
}

func executions(p *planetest.Platform) []doze.Execution {
	p.T.Helper()
	return planetest.Want[[]doze.Execution](p, 200, "GET", "/sandboxes/a/schedule-executions", "")
}

func TestScheduleStartsProcesses(t *testing.T) {
	t.Parallel()
	planetest.InBubble(t, func(p *planetest.Platform) {
		t := p.T
		p.Create(planetest.Named("a"))
		planetest.After(90 * time.Second)
		e := p.Plan(`{"type":"cron","value":"*/2 * * * *","input":{"command":"date","name":"now","env":{"A":"b"},"workingDir":"/tmp"},"sandbox":"x"}`)
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
		planetest.After(5 * time.Minute)
		all := p.Started()
		if diff := cmp.Diff([]string{"00:02:00", "00:04:00", "00:06:00"}, minutes(all)); diff != "" {
			t.Fatal(diff)
		}
		var sent doze.ScheduleInput
		if err := json.Unmarshal([]byte(all[0].Body), &sent); err != nil {
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
		if diff := cmp.Diff(first, ran[2]); diff != "" || !ran[2].ExecutedAt.Equal(all[0].At) {
			t.Errorf("executed at %v: %s", ran[2].ExecutedAt, diff)
		}

		planetest.Want[doze.Schedule](p, 200, "DELETE", planetest.Schedules+"/schedule-0", "")
		planetest.Want[any](p, 404, "DELETE", planetest.Schedules+"/schedule-0", "")
		planetest.After(time.Hour)
		if all := p.Started(); len(all) != 0 {
			t.Errorf("a deleted schedule started %d processes", len(all))
		}
		if got := executions(p); len(got) != 3 {
			t.Errorf("of a deleted schedule there are %d executions", len(got))
		}
	})
}

func TestSchedulesOfOneTime(t *testing.T) {
	t.Parallel()
	planetest.InBubble(t, func(p *planetest.Platform) {
		t := p.T
		p.Create(planetest.Named("a"))
		p.Plan(`{"id":"at","type":"at","value":"2000-01-01T02:00:00.25+01:00","input":{"command":"a","keepAlive":false,"timeout":0}}`)
		slept := p.Plan(`{"id":"later","type":"sleep","value":"2h","input":{"command":"b"}}`)
		if slept.Type != "at" || slept.Value != "2000-01-01T02:00:00Z" {
			t.Errorf("%+v, want its moment", slept)
		}
		planetest.After(time.Hour)
		if all := p.Started(); len(all) != 0 {
			t.Fatalf("too early: %+v", all)
		}
		planetest.After(250 * time.Millisecond)
		all := p.Started()
		if len(all) != 1 || all[0].Body != `{"command":"a","keepAlive":false,"timeout":0}` {
			t.Fatalf("%+v", all)
		}
		planetest.Want[any](p, 404, "GET", planetest.Schedules+"/at", "")
		planetest.Want[doze.Schedule](p, 200, "GET", planetest.Schedules+"/later", "")
		planetest.After(time.Hour)
		if diff := cmp.Diff([]string{"02:00:00"}, minutes(p.Started())); diff != "" {
			t.Error(diff)
		}
		if left := planetest.Want[[]doze.Schedule](p, 200, "GET", planetest.Schedules, ""); len(left) != 0 {
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
		harm   func(*planetest.Platform)
		status int
		says   string
	}{
		"refused":     {func(p *planetest.Platform) { p.Node.Refuse = http.StatusUnprocessableEntity }, 422, "sandbox a: it refused the process: not today"},
		"no answer":   {func(p *planetest.Platform) { p.Node.Set("start", doze.Errorf(doze.Unavailable, "no room")) }, 0, "sandbox a: no room"},
		"our mistake": {func(p *planetest.Platform) { p.Node.Set("start", fmt.Errorf("10.0.0.1 is odd")) }, 0, "sandbox a: internal error"},
		"disabled": {func(p *planetest.Platform) {
			planetest.Want[any](p, 200, "PUT", "/sandboxes/a", `{"spec":{"enabled":false}}`)
		}, 0, "sandbox a: it is disabled"},
		"hanging": {func(p *planetest.Platform) { p.Node.Block = make(chan struct{}) }, 0, "sandbox a: it did not start the process within 2m0s"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			planetest.InBubble(t, func(p *planetest.Platform) {
				t := p.T
				p.Create(planetest.Named("a"))
				p.Plan(`{"type":"cron","value":"0 1 * * *","input":{"command":"a"}}`)
				tt.harm(p)
				planetest.After(time.Hour + 3*time.Minute)
				ran := executions(p)
				if len(ran) != 1 || ran[0].Status != "failed" || ran[0].StatusCode != tt.status || ran[0].Error != tt.says {
					t.Errorf("%+v", ran)
				}
				planetest.Want[doze.Schedule](p, 200, "GET", planetest.Schedules+"/schedule-0", "")
			})
		})
	}
}

// TestSchedulesAreLimited keeps a ring of executions, and starts no more at a
// time than there is room for.
func TestSchedulesAreLimited(t *testing.T) {
	t.Parallel()
	planetest.InBubble(t, func(p *planetest.Platform) {
		t := p.T
		p.Create(planetest.Named("a"))
		p.Plan(`{"id":"often","type":"cron","value":"* * * * *","maxExecutions":3,"input":{"command":"a"}}`)
		p.Plan(`{"id":"seldom","type":"cron","value":"5 * * * *","input":{"command":"a"}}`)
		planetest.After(10 * time.Minute)
		count := map[string]int{}
		for _, e := range executions(p) {
			count[e.ScheduleID]++
		}
		if diff := cmp.Diff(map[string]int{"often": 3, "seldom": 1}, count); diff != "" {
			t.Error(diff)
		}
		for range doze.SchedulesMax - 2 {
			p.Plan(`{"type":"cron","value":"0 3 * * *","input":{"command":"b"}}`)
		}
		if w := p.Do("POST", planetest.Schedules, `{"type":"cron","value":"0 3 * * *","input":{"command":"b"}}`); w.Code != 429 || !strings.Contains(w.Body.String(), "limit") {
			t.Errorf("%d %s", w.Code, w.Body)
		}
		planetest.Want[any](p, 200, "DELETE", planetest.Schedules+"/often", "")
		planetest.After(2*time.Hour + 49*time.Minute)
		p.Started()
		block := make(chan struct{})
		p.Node.Mu.Lock()
		p.Node.Block = block
		p.Node.Mu.Unlock()
		planetest.After(2 * time.Minute)
		p.Node.Mu.Lock()
		p.Node.Block = nil
		p.Node.Mu.Unlock()
		close(block)
		planetest.After(time.Second) // the rest follow as soon as there is room
		if all := p.Started(); len(all) != doze.SchedulesMax-2 {
			t.Errorf("%d were started", len(all))
		}
	})
}

// TestSchedulesOutliveTheDaemon stops it: what was due meanwhile is started
// once, and what was being started is known to have been cut short.
func TestSchedulesOutliveTheDaemon(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		p := planetest.Start(t, true)
		p.Create(planetest.Named("a"))
		p.Plan(`{"id":"often","type":"cron","value":"*/10 * * * *","input":{"command":"a","env":{"TOKEN":"hush-hush"}}}`)
		p.Plan(`{"id":"once","type":"at","value":"2000-01-01T00:05:00Z","input":{"command":"b"}}`)
		p.Plan(`{"id":"cut","type":"at","value":"2000-01-01T00:00:30Z","input":{"command":"c"}}`)
		p.Node.Mu.Lock()
		p.Node.Block = make(chan struct{})
		p.Node.Mu.Unlock()
		planetest.After(31 * time.Second)
		if ran := executions(p); len(ran) != 0 {
			t.Errorf("what is being started shows as %+v", ran)
		}
		p.Stop()
		p.Node.Mu.Lock()
		p.Node.Block = nil
		p.Node.Mu.Unlock()
		for _, file := range []string{p.File, p.File + "-wal"} {
			if b, err := os.ReadFile(file); err == nil && bytes.Contains(b, []byte("hush-hush")) {
				t.Errorf("a variable can be read in %s", file)
			}
		}
		planetest.After(2*time.Hour + 15*time.Minute)
		p.Open(true)
		planetest.After(time.Second)
		if all := p.Started(); len(all) != 2 {
			t.Errorf("%+v, want one of each that was due", all)
		}
		ran := executions(p)
		if len(ran) != 3 || ran[2].ScheduleID != "cut" || ran[2].Status != "failed" || !strings.Contains(ran[2].Error, "the platform stopped") {
			t.Errorf("%+v", ran)
		}
		planetest.After(10 * time.Minute)
		if diff := cmp.Diff([]string{"02:20:00"}, minutes(p.Started())); diff != "" {
			t.Error(diff)
		}
		p.Stop()
	})
}

// TestSchedulesOfAnUpgrade has the node stop before control, as it does: what is
// due then is started by the next.
func TestSchedulesOfAnUpgrade(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		p := planetest.Start(t, true)
		p.Create(planetest.Named("a"))
		p.Plan(`{"id":"often","type":"cron","value":"*/10 * * * *","input":{"command":"a"}}`)
		p.Plan(`{"id":"once","type":"at","value":"2000-01-01T00:10:00Z","input":{"command":"b","env":{"A":"b"}}}`)
		p.Node.Set("start", fleet.ErrStopping)
		planetest.After(11 * time.Minute)
		p.Stop()
		p.Node.Set("start", nil)
		planetest.After(time.Minute)
		p.Open(true)
		planetest.After(time.Second)
		all := p.Started()
		if diff := cmp.Diff([]string{"00:12:00", "00:12:00"}, minutes(all)); diff != "" {
			t.Error(diff)
		}
		ran := executions(p)
		if len(ran) != 2 || ran[0].Status != "succeeded" || ran[1].Status != "succeeded" {
			t.Errorf("%+v", ran)
		}
		planetest.Want[any](p, 404, "GET", planetest.Schedules+"/once", "")
		p.Stop()
	})
}

func TestSchedulesEndWithTheirSandbox(t *testing.T) {
	t.Parallel()
	planetest.InBubble(t, func(p *planetest.Platform) {
		t := p.T
		p.Create(`{"metadata":{"name":"a"},"spec":{"runtime":{"ttl":"90m"}}}`)
		p.Plan(`{"type":"cron","value":"0 * * * *","input":{"command":"a"}}`)
		planetest.After(85 * time.Minute)
		if len(p.Started()) != 1 {
			t.Error("it was not started")
		}
		planetest.After(time.Hour)
		if all := p.Started(); len(all) != 0 {
			t.Errorf("of a sandbox that has ended %d were started", len(all))
		}
		p.Create(planetest.Named("a"))
		if all := planetest.Want[[]doze.Schedule](p, 200, "GET", planetest.Schedules, ""); len(all) != 0 {
			t.Errorf("the next of its name has %+v", all)
		}
		for _, path := range []string{"/schedules", "/schedule-executions"} {
			if all := planetest.Want[[]any](p, 200, "GET", path, ""); len(all) != 0 {
				t.Errorf("%s has %+v", path, all)
			}
		}
	})
}

func TestScheduleUpdate(t *testing.T) {
	t.Parallel()
	planetest.InBubble(t, func(p *planetest.Platform) {
		t := p.T
		p.Create(planetest.Named("a"))
		p.Plan(`{"id":"s","type":"cron","value":"30 * * * *","input":{"command":"a","env":{"A":"1","B":"2"},"timeout":7}}`)
		read := planetest.Want[doze.Schedule](p, 200, "GET", planetest.Schedules+"/s", "")
		// All of what was read is put back, as clients do.
		read.Input.Command = "b"
		delete(read.Input.Env, "B")
		body, err := json.Marshal(read)
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(read, planetest.Want[doze.Schedule](p, 200, "PUT", planetest.Schedules+"/s", string(body))); diff != "" {
			t.Error(diff)
		}
		planetest.After(31 * time.Minute)
		if all := p.Started(); len(all) != 1 || all[0].Body != `{"command":"b","env":{"A":"1"},"keepAlive":true,"timeout":7}` {
			t.Errorf("%+v", all)
		}
		// Another time; what is null has its default again.
		changed := planetest.Want[doze.Schedule](p, 200, "PUT", planetest.Schedules+"/s", `{"value":"40 * * * *","input":{"timeout":null}}`)
		if *changed.Input.Timeout != 600 || changed.Input.Command != "b" {
			t.Errorf("%+v", changed)
		}
		planetest.After(29 * time.Minute)
		if diff := cmp.Diff([]string{"00:40:00"}, minutes(p.Started())); diff != "" {
			t.Error(diff)
		}
		planetest.Want[doze.Schedule](p, 200, "PUT", planetest.Schedules+"/s", `{"type":"sleep","value":"5m"}`)
		planetest.After(6 * time.Minute)
		if diff := cmp.Diff([]string{"01:05:00"}, minutes(p.Started())); diff != "" {
			t.Error(diff)
		}
		planetest.Want[any](p, 404, "PUT", planetest.Schedules+"/s", `{}`)
	})
}

func TestScheduleMistakes(t *testing.T) {
	t.Parallel()
	p := planetest.Start(t, false)
	p.Create(planetest.Named("a"))
	p.Plan(`{"id":"there","type":"cron","value":"0 0 1 1 *","input":{"command":"a"}}`)
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
		`{` + good + `,"maxExecutions":1001,"input":{"command":"a"}}`:                                        {400, []string{"0 to 1000"}},
		string(many): {400, []string{"input.command is", "input.name is", "input.workingDir is"}},
		`{"id":"there",` + good + `,"input":{"command":"a"}}`: {409, []string{"already"}},
		`[]`: {400, []string{"object"}},
	} {
		w := p.Do("POST", planetest.Schedules, body)
		planetest.CheckError(t, w)
		for _, says := range tt.says {
			if w.Code != tt.status || !strings.Contains(w.Body.String(), says) {
				t.Errorf("%.200s: %d %s, want %q", body, w.Code, w.Body, says)
			}
		}
	}
	planetest.Want[any](p, 400, "PUT", planetest.Schedules+"/there", `{"id":"else"}`)
	planetest.Want[any](p, 400, "PUT", planetest.Schedules+"/there", `{"type":"at"}`)
	planetest.Want[any](p, 404, "PUT", planetest.Schedules+"/none", `{}`)
	planetest.Want[any](p, 404, "GET", "/sandboxes/none/schedules", "")
	planetest.Want[any](p, 404, "GET", "/sandboxes/none/schedule-executions", "")
	if all := planetest.Want[[]doze.Schedule](p, 200, "GET", planetest.Schedules, ""); len(all) != 1 {
		t.Errorf("%+v", all)
	}
}

func TestScheduleLists(t *testing.T) {
	t.Parallel()
	planetest.InBubble(t, func(p *planetest.Platform) {
		t := p.T
		paged := []string{"Blaxel-Version", "2026-04-28"}
		p.Create(planetest.Named("a"))
		p.Create(planetest.Named("b"))
		for i := range 25 {
			p.Plan(fmt.Sprintf(`{"id":"s-%d","type":"cron","value":"%d 1 * * *","input":{"command":"a","env":{"K":"v"}}}`, i, i))
			planetest.After(time.Second)
		}
		planetest.Want[any](p, 200, "POST", "/sandboxes/b/schedules", `{"type":"at","value":"2001-01-01","input":{"command":"a"}}`)
		type list struct {
			Data []doze.Schedule
			Meta struct {
				HasMore    bool
				NextCursor string
				Total      int
			}
		}
		one := planetest.Want[list](p, 200, "GET", planetest.Schedules, "", paged...)
		two := planetest.Want[list](p, 200, "GET", planetest.Schedules+"?cursor="+one.Meta.NextCursor, "", paged...)
		if len(one.Data) != 20 || one.Data[0].ID != "s-24" || one.Meta.Total != 25 || len(two.Data) != 5 || two.Meta.HasMore {
			t.Errorf("pages of %d and %d, total %d", len(one.Data), len(two.Data), one.Meta.Total)
		}
		for query, n := range map[string]int{
			"": 20, "?limit=500": 26, "?type=at": 1, "?type=other&limit=100": 26, "?sandbox=b": 1, "?sandbox=none": 0, "?q=s-1&limit=100": 11, "?sort=createdAt:asc&limit=2": 2,
		} {
			if got := planetest.Want[list](p, 200, "GET", "/schedules"+query, "", paged...); len(got.Data) != n || got.Meta.Total != 26 {
				t.Errorf("/schedules%s has %d of %d, want %d", query, len(got.Data), got.Meta.Total, n)
			}
		}
		for _, query := range []string{"?sort=name:asc", "?limit=0", "?cursor=x", "?cursor=" + one.Meta.NextCursor} {
			planetest.CheckError(t, p.Do("GET", "/schedules"+query, "", paged...))
		}
		planetest.After(2 * time.Hour)
		type runs struct{ Data []doze.Execution }
		for query, n := range map[string]int{
			"?limit=100": 25, "?status=failed": 0, "?status=Succeeded&limit=100": 25, "?schedule=s-3": 1, "?sandbox=b": 0,
			"?since=2000-01-01T01:05:00Z&until=2000-01-01T01:06:00Z": 2, "?until=2000-01-01T00:59:59Z": 0,
		} {
			if got := planetest.Want[runs](p, 200, "GET", "/schedule-executions"+query, "", paged...); len(got.Data) != n {
				t.Errorf("/schedule-executions%s has %d, want %d", query, len(got.Data), n)
			}
		}
		for _, query := range []string{"?status=pending", "?since=x", "?sort=name:desc"} {
			planetest.CheckError(t, p.Do("GET", "/schedule-executions"+query, "", paged...))
		}
		m := planetest.Want[doze.ScheduleMetrics](p, 200, "GET", "/schedules/metrics?since="+url.QueryEscape("2000-01-01T01:05:30Z"), "")
		if m.Executions != 20 || m.ExecutionsByStatus["succeeded"] != 20 || m.ExecutionsByStatus["failed"] != 0 || m.Schedules != 26 || m.Sandboxes != 2 || m.Since.Second() != 0 {
			t.Errorf("%+v", m)
		}
		for _, query := range []string{"?since=x", "?since=1999-12-01", "?since=2000-01-01T01:05:00Z&until=2000-01-01T01:05:00Z"} {
			planetest.CheckError(t, p.Do("GET", "/schedules/metrics"+query, ""))
		}

		shown := planetest.Want[doze.Schedule](p, 200, "GET", planetest.Schedules+"/s-1?show_secrets=true", "")
		if shown.Input.Env["K"] != "v" || one.Data[0].Input.Env["K"] != doze.MaskedValue {
			t.Errorf("%v, %v", shown.Input.Env, one.Data[0].Input.Env)
		}
		looks := p.KeyFor("main", time.Time{}, "sandboxes:get", "sandboxes:list")
		for _, path := range []string{planetest.Schedules + "/s-1", planetest.Schedules, "/schedules"} {
			planetest.Want[any](p, 200, "GET", path, "", planetest.As(looks)...)
			planetest.Want[any](p, 403, "GET", path+"?show_secrets=true", "", planetest.As(looks)...)
		}
	})
}

// TestSchedulesFollowTheClock sets it back, which this process learns by a call.
func TestSchedulesFollowTheClock(t *testing.T) {
	t.Parallel()
	planetest.InBubble(t, func(p *planetest.Platform) {
		t := p.T
		p.Create(planetest.Named("a"))
		p.Plan(`{"id":"s","type":"cron","value":"*/10 * * * *","input":{"command":"a"}}`)
		// As if it had been planned when the clock was three hours ahead.
		sb, err := p.Store.SandboxByName(t.Context(), "main", "a")
		if err != nil {
			t.Fatal(err)
		}
		record, err := p.Store.Schedule(t.Context(), sb.UID, "s")
		if err != nil {
			t.Fatal(err)
		}
		if _, err := p.Store.ChangeSchedule(t.Context(), sb.UID, "s", func(e *store.Schedule) error {
			e.Due = record.Due.Add(3 * time.Hour)
			return nil
		}); err != nil {
			t.Fatal(err)
		}
		planetest.After(15 * time.Minute)
		if all := p.Started(); len(all) != 0 {
			t.Fatalf("%+v", all)
		}
		p.Rooms.ClockStepped()
		planetest.After(10 * time.Minute)
		if diff := cmp.Diff([]string{"00:20:00"}, minutes(p.Started())); diff != "" {
			t.Error(diff)
		}
	})
}
