package terminal

import (
	"encoding/json"
	"reflect"
	"testing"

	"github.com/dozehq/doze/internal/agent/environ"
)

func FuzzStart(f *testing.F) {
	for _, s := range []string{`{"type":"start","command":"ls","env":{"A":"b"}}`, `{"type":"start"}`, `{"type":"start","env":{"=":""}}`, `{"type":"input"}`, `x`} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		c, err := parseStart(b, "/", environ.List{"HOME=/"})
		if err == nil && c != nil && c.Command == "" {
			t.Errorf("accepted %+v", c)
		}
	})
}

func FuzzFrame(f *testing.F) {
	for _, s := range []string{`{"type":"input","data":"ls\n"}`, `{"type":"resize","cols":80,"rows":24}`, `{"type":"resize","cols":70000}`, `{"type":"signal","data":"TERM"}`, `{"type":"start","command":"ls","env":{"A":"b"}}`, `{}`, `x`} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		in, ok := parseFrame(b)
		if !ok {
			return
		}
		switch {
		case in.Type == "input" && in.Data != "":
		case in.Type == "resize" && in.Cols > 0 && in.Rows > 0:
		case in.Type == "signal" && signals[in.Data] > 0:
		default:
			t.Errorf("accepted %+v", in)
		}
		out, err := json.Marshal(in)
		if again, ok := parseFrame(out); err != nil || !ok || !reflect.DeepEqual(again, in) {
			t.Errorf("%+v comes back as %+v", in, again)
		}
	})
}
