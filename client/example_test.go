package client_test

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"os"
	"strings"

	"github.com/dozehq/doze"
	"github.com/dozehq/doze/client"
)

// address is where a platform is, such as https://doze.example.com, and key is an API key
// of it. Tests start a platform for the examples.
var address, key string

// connect returns a client of the platform.
func connect() (*client.Client, error) {
	return client.New(client.Config{Address: address, Key: key})
}

// begin creates a sandbox and returns the API inside it.
func begin(ctx context.Context, c *client.Client, name string) (*client.Agent, error) {
	sb, err := c.Create(ctx, doze.Sandbox{
		Metadata: doze.Metadata{Name: name},
		Spec:     doze.SandboxSpec{Runtime: doze.Runtime{Memory: 512}},
	}, false)
	if err != nil {
		return nil, err
	}
	return c.Agent(sb)
}

// A first sandbox: create it, run a command in it, delete it.
func Example() {
	ctx := context.Background()
	c, err := client.New(client.Config{Address: address, Key: key})
	if err != nil {
		fmt.Println(err)
		return
	}
	defer c.Close()

	sb, err := c.Create(ctx, doze.Sandbox{Metadata: doze.Metadata{Name: "first"}}, false)
	if err != nil {
		fmt.Println(err)
		return
	}
	defer func() { _, _ = c.Delete(ctx, "first") }()
	agent, err := c.Agent(sb)
	if err != nil {
		fmt.Println(err)
		return
	}
	p, err := agent.Start(ctx, client.Command{Command: "echo hello", Wait: true})
	if err != nil {
		fmt.Println(err)
		return
	}
	fmt.Printf("%s%d\n", p.Stdout, p.ExitCode)
	// Output:
	// hello
	// 0
}

// Files are streams: neither side holds one in memory.
func ExampleAgent_WriteFile() {
	ctx := context.Background()
	c, err := connect()
	if err != nil {
		fmt.Println(err)
		return
	}
	defer c.Close()
	agent, err := begin(ctx, c, "files")
	if err != nil {
		fmt.Println(err)
		return
	}
	defer func() { _, _ = c.Delete(ctx, "files") }()

	if _, err := agent.WriteFile(ctx, "/srv/notes/a.txt", strings.NewReader("hello\n"), "0600"); err != nil {
		fmt.Println(err)
		return
	}
	d, err := agent.ReadDir(ctx, "/srv/notes")
	if err != nil {
		fmt.Println(err)
		return
	}
	for _, f := range d.Files {
		fmt.Println(f.Name, f.Size, f.Permissions)
	}
	content, err := agent.ReadFile(ctx, "/srv/notes/a.txt")
	if err != nil {
		fmt.Println(err)
		return
	}
	defer func() { _ = content.Close() }()
	_, _ = io.Copy(os.Stdout, content)

	_, err = agent.ReadFile(ctx, "/srv/notes/none")
	fmt.Println(doze.Public(err).Kind == doze.NotFound)
	// Output:
	// a.txt 6 600
	// hello
	// true
}

// Run passes output on as it comes. A command that fails is no error.
func ExampleAgent_Run() {
	ctx := context.Background()
	c, err := connect()
	if err != nil {
		fmt.Println(err)
		return
	}
	defer c.Close()
	agent, err := begin(ctx, c, "processes")
	if err != nil {
		fmt.Println(err)
		return
	}
	defer func() { _, _ = c.Delete(ctx, "processes") }()

	p, err := agent.Run(ctx, client.Command{
		Command: "sort; exit 3", Env: map[string]string{"LC_ALL": "C"}, Input: strings.NewReader("b\na\n"),
	}, func(from client.Channel, data string) error {
		fmt.Printf("%s: %q\n", from, data)
		return nil
	})
	if err != nil {
		fmt.Println(err)
		return
	}
	fmt.Println(p.Status, p.ExitCode)
	// Output:
	// stdout: "a\nb\n"
	// failed 3
}

// A preview is a public address of a port.
func ExampleClient_CreatePreview() {
	ctx := context.Background()
	c, err := connect()
	if err != nil {
		fmt.Println(err)
		return
	}
	defer c.Close()
	agent, err := begin(ctx, c, "previews")
	if err != nil {
		fmt.Println(err)
		return
	}
	defer func() { _, _ = c.Delete(ctx, "previews") }()

	if _, err := agent.WriteFile(ctx, "/srv/www/index.html", strings.NewReader("a page\n"), ""); err != nil {
		fmt.Println(err)
		return
	}
	server := "python3 -m http.server -d /srv/www 3000 & until curl -s localhost:3000 >/dev/null; do sleep 0.1; done"
	if _, err := agent.Start(ctx, client.Command{Command: server, Wait: true}); err != nil {
		fmt.Println(err)
		return
	}
	p, err := c.CreatePreview(ctx, "previews", doze.Preview{
		Metadata: doze.PreviewMetadata{Name: "site"}, Spec: doze.PreviewSpec{Port: 3000, Public: true},
	})
	if err != nil {
		fmt.Println(err)
		return
	}
	resp, err := http.Get(p.Spec.URL)
	if err != nil {
		fmt.Println(err)
		return
	}
	defer func() { _ = resp.Body.Close() }()
	_, _ = io.Copy(os.Stdout, resp.Body)
	// Output:
	// a page
}

// A snapshot captures memory and files. Any number of sandboxes go on from it.
func ExampleClient_CreateSnapshot() {
	ctx := context.Background()
	c, err := connect()
	if err != nil {
		fmt.Println(err)
		return
	}
	defer c.Close()
	agent, err := begin(ctx, c, "original")
	if err != nil {
		fmt.Println(err)
		return
	}
	defer func() { _, _ = c.Delete(ctx, "original") }()
	if _, err := agent.Start(ctx, client.Command{Name: "job", Command: "sleep 1000"}); err != nil {
		fmt.Println(err)
		return
	}

	snapshot, err := c.CreateSnapshot(ctx, "original", "before")
	if err != nil {
		fmt.Println(err)
		return
	}
	defer func() { _ = c.DeleteSnapshot(ctx, snapshot.ID) }()
	if _, err := c.ForkSnapshot(ctx, snapshot.ID, doze.ForkRequest{TargetName: "copy", TargetType: "sandbox"}); err != nil {
		fmt.Println(err)
		return
	}
	defer func() { _, _ = c.Delete(ctx, "copy") }()
	sb, err := c.Sandbox(ctx, "copy")
	if err != nil {
		fmt.Println(err)
		return
	}
	if agent, err = c.Agent(sb); err != nil {
		fmt.Println(err)
		return
	}
	p, err := agent.Process(ctx, "job")
	if err != nil {
		fmt.Println(err)
		return
	}
	fmt.Println(p.Command, p.Status)
	// Output:
	// sleep 1000 running
}
