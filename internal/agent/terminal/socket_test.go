package terminal

import (
	"encoding/json"
	"testing"
)

func FuzzFrame(f *testing.F) {
	for _, s := range []string{`{"type":"input","data":"ls\n"}`, `{"type":"resize","cols":80,"rows":24}`, `{"type":"resize","cols":70000}`, `{}`, `x`} {
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
		default:
			t.Errorf("accepted %+v", in)
		}
		out, err := json.Marshal(in)
		if again, ok := parseFrame(out); err != nil || !ok || again != in {
			t.Errorf("%+v comes back as %+v", in, again)
		}
	})
}
