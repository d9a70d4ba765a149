package python_test

import (
	"encoding/json"
	"flag"
	"os"
	"path/filepath"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/dozehq/doze/internal/manual"
	"github.com/dozehq/doze/internal/openapi"
	"github.com/dozehq/doze/internal/plane"
	"github.com/dozehq/doze/internal/python"
)

var update = flag.Bool("update", false, "write the modules of clients/python")

// module is where the client is.
const module = "../../clients/python/doze"

// TestClientIsCurrent compares what is written of the client with what follows from the
// descriptions, and its blocking half with the half for asyncio.
func TestClientIsCurrent(t *testing.T) {
	t.Parallel()
	text, err := manual.Sandbox()
	if err != nil {
		t.Fatal(err)
	}
	var inside openapi.Document
	if err := json.Unmarshal(text, &inside); err != nil {
		t.Fatal(err)
	}
	apis := []python.API{
		{Document: plane.Describe().Description(), Class: "AsyncControlOperations", About: "The calls of the control API."},
		{Document: inside, Class: "AsyncSandboxOperations", About: "The calls of the API inside a sandbox."},
	}
	models, err := python.Models(apis...)
	if err != nil {
		t.Fatal(err)
	}
	operations, err := python.Operations(apis...)
	if err != nil {
		t.Fatal(err)
	}
	want := map[string]string{
		"models.py": models, "_async/operations.py": operations, "_sync/operations.py": python.Blocking(operations),
		"_sync/__init__.py": python.Blocking(""),
	}
	for _, name := range []string{"client.py", "transport.py"} {
		source, err := os.ReadFile(filepath.Join(module, "_async", name))
		if err != nil {
			t.Fatal(err)
		}
		want["_sync/"+name] = python.Blocking(string(source))
	}
	for name, text := range want {
		file := filepath.Join(module, name)
		if *update {
			if err := os.WriteFile(file, []byte(text), 0o644); err != nil {
				t.Fatal(err)
			}
		}
		got, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(text, string(got)); diff != "" {
			t.Errorf("%s is stale: run make gen\n%s", file, diff)
		}
	}
}
