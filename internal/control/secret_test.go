package control_test

import (
	"bytes"
	"os"
	"strings"
	"testing"
	"testing/synctest"

	"github.com/google/go-cmp/cmp"

	"github.com/dozehq/doze"
	"github.com/dozehq/doze/internal/plane/planetest"
)

// environment is what the machine of the sandbox "a" got.
func environment(p *planetest.Platform) (env []string) {
	p.Node.With("a", func(_ string, m *planetest.Machine) { env = m.Order.Env })
	return env
}

func TestVariablesComeFromElsewhere(t *testing.T) {
	t.Parallel()
	planetest.InBubble(t, func(p *planetest.Platform) {
		t := p.T
		planetest.Want[doze.Secret](p, 200, "POST", "/secrets", `{"metadata":{"name":"db"},"data":{"password":"hunter2\n'\"$(x)"}}`)
		const from = `[{"name":"PLAIN","value":"a\nb"},
			{"name":"PW","valueFrom":{"secretKeyRef":{"name":"db","key":"password"}}},
			{"name":"NONE","valueFrom":{"secretKeyRef":{"name":"db","key":"none","optional":true}}},
			{"name":"MB","valueFrom":{"resourceFieldRef":{"resource":"limits.memory","divisor":"1Mi"}}},
			{"name":"ME","secret":true,"valueFrom":{"fieldRef":{"fieldPath":"metadata.name"}}}]`
		sb := p.Create(`{"metadata":{"name":"a"},"spec":{"runtime":{"memory":2048,"envs":` + from + `}}}`)
		env := []string{"PLAIN=a\nb", "PW=hunter2\n'\"$(x)", "MB=2048", "ME=a"}
		if diff := cmp.Diff(env, environment(p)); diff != "" {
			t.Error(diff)
		}
		if e := sb.Spec.Runtime.Envs[1]; string(e.ValueFrom) != `{"secretKeyRef":{"key":"password","name":"db"}}` || e.Value != nil {
			t.Errorf("answered as %+v", e)
		}
		if e := sb.Spec.Runtime.Envs[4]; e.Value != nil {
			t.Errorf("a value from elsewhere is masked: %+v", e)
		}
		// The same again, and without the sources, is no change.
		machines := p.Node.Ordered()
		planetest.Want[planetest.Sandbox](p, 200, "PUT", "/sandboxes/a", `{"spec":{"runtime":{"envs":`+from+`}}}`)
		planetest.Want[planetest.Sandbox](p, 200, "PUT", "/sandboxes/a", `{"spec":{"runtime":{"envs":[{"name":"PLAIN"},{"name":"PW"},{"name":"NONE"},{"name":"MB"},{"name":"ME","value":"********"}]}}}`)
		if p.Node.Ordered() != machines {
			t.Error("no change made a fresh machine")
		}
		// A secret that changes is seen by the next machine.
		planetest.Want[doze.Secret](p, 200, "PUT", "/secrets/db", `{"data":{"password":"new","other":"x"}}`)
		planetest.Want[planetest.Sandbox](p, 200, "PUT", "/sandboxes/a", `{"spec":{"runtime":{"memory":1024}}}`)
		env[1], env[2] = "PW=new", "MB=1024"
		if diff := cmp.Diff(env, environment(p)); diff != "" {
			t.Error(diff)
		}
		// One that is gone fails the change, not the sandbox.
		planetest.Want[doze.Secret](p, 200, "DELETE", "/secrets/db", "")
		w := p.Do("PUT", "/sandboxes/a", `{"spec":{"runtime":{"memory":512}}}`)
		if w.Code != 400 || !strings.Contains(w.Body.String(), "PW refers to the key") {
			t.Errorf("%d %s", w.Code, w.Body)
		}
		if sb := p.Get(); sb.Status != "DEPLOYED" || sb.Spec.Runtime.Memory != 1024 {
			t.Errorf("afterwards %s with %d", sb.Status, sb.Spec.Runtime.Memory)
		}
	})
}

func TestVariableMistakesLeaveNothing(t *testing.T) {
	t.Parallel()
	p := planetest.Start(t, false)
	for envs, says := range map[string]string{
		`[{"name":"A","valueFrom":{"secretKeyRef":{"name":"none","key":"k"}}},{"name":"B","valueFrom":{"secretKeyRef":{"name":"none","key":"l"}}}]`: `the key \"l\"`,
		`[{"name":"A","value":"x","valueFrom":{"fieldRef":{"fieldPath":"metadata.name"}}}]`:                                                         "both a value",
		`[{"name":"A","valueFrom":{"fieldRef":{"fieldPath":"spec.nodeName"}}}]`:                                                                     "spec.nodeName",
		`[{"name":"A","valueFrom":"x"}]`: "object",
	} {
		w := p.Do("POST", "/sandboxes", `{"metadata":{"name":"a"},"spec":{"runtime":{"envs":`+envs+`}}}`)
		if w.Code != 400 || !strings.Contains(w.Body.String(), says) {
			t.Errorf("%s: %d %s", envs, w.Code, w.Body)
		}
	}
	planetest.Want[any](p, 404, "GET", "/sandboxes/a", "")
}

func TestSecretsAreSealedAndMasked(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		p := planetest.Start(t, true)
		sec := planetest.Want[doze.Secret](p, 200, "POST", "/secrets", `{"metadata":{"name":"db","labels":{"a":"b"}},"data":{"one":"hunter2","two":"hunter3"}}`)
		if diff := cmp.Diff(map[string]string{"one": doze.MaskedValue, "two": doze.MaskedValue}, sec.Data); diff != "" {
			t.Error(diff)
		}
		p.Create(`{"metadata":{"name":"a"},"spec":{"runtime":{"envs":[{"name":"S","value":"hunter4","secret":true},{"name":"T","value":"open"}]}}}`)
		p.Reopen()
		for _, file := range []string{p.File, p.File + "-wal"} {
			b, err := os.ReadFile(file)
			if err == nil && bytes.Contains(b, []byte("hunter")) {
				t.Errorf("a secret is in %s", file)
			}
		}
		if got := planetest.Want[planetest.Sandbox](p, 200, "GET", "/sandboxes/a?show_secrets=true", "").Spec.Runtime.Envs[0].Text(); got != "hunter4" {
			t.Errorf("revealed %q", got)
		}
		for _, path := range []string{"/secrets", "/secrets/db", "/sandboxes/a", "/sandboxes"} {
			if w := p.Do("GET", path, ""); w.Code != 200 || strings.Contains(w.Body.String(), "hunter") {
				t.Errorf("%s: %d %s", path, w.Code, w.Body)
			}
		}
		// A masked value stays, an absent key goes, labels change alone.
		planetest.Want[doze.Secret](p, 200, "PUT", "/secrets/db", `{"data":{"one":"********"}}`)
		planetest.Want[doze.Secret](p, 200, "PUT", "/secrets/db", `{"metadata":{"labels":{}}}`)
		stored, err := p.Store.Secret(t.Context(), "main", "db")
		if diff := cmp.Diff(map[string]string{"one": "hunter2"}, stored.Data); err != nil || diff != "" {
			t.Error(err, diff)
		}
		for _, tt := range []struct {
			method, path, body string
			status             int
		}{
			{"POST", "/secrets", `{"metadata":{"name":"db"},"data":{}}`, 409},
			{"POST", "/secrets", `{"metadata":{"name":"X"},"data":{"a b":"c"}}`, 400},
			{"POST", "/secrets", `{"metadata":{"name":"x"},"data":{"a":7}}`, 400},
			{"POST", "/secrets", `{"metadata":{"name":"x"},"data":{"a":"` + strings.Repeat("x", doze.SecretBytesMax) + `"}}`, 400},
			{"PUT", "/secrets/db", `{"data":{"new":"********"}}`, 400},
			{"PUT", "/secrets/db", `{"metadata":{"name":"other"}}`, 400},
			{"PUT", "/secrets/none", `{}`, 404},
			{"DELETE", "/secrets/db", ``, 200},
			{"DELETE", "/secrets/db", ``, 404},
		} {
			w := p.Do(tt.method, tt.path, tt.body)
			if w.Code != tt.status {
				t.Errorf("%s %s %.60s: %d %s", tt.method, tt.path, tt.body, w.Code, w.Body)
			}
		}
		p.Stop()
	})
}
