package agentapi

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/dozehq/doze"
)

const (
	// answerMax bounds an answer, in bytes.
	answerMax = 4 << 10
	// processesMax is the same for what ran in a sandbox: each process has a
	// command and variables.
	processesMax = 16 << 20
	// collectedMax is the same for output: an agent sends 128 KiB of text at most,
	// of which each byte may be six in JSON.
	collectedMax = 1 << 20
	// imageStateMax is the same for how the process of an image is.
	imageStateMax = 64 << 10
	// bootPoll is the pause between attempts to reach an agent that starts.
	bootPoll = 2 * time.Millisecond
	// excerpt is how much of a refusal is repeated, in bytes.
	excerpt = 300
)

// A Client asks one agent. Its errors are those of the transport, or a *RefusalError.
type Client struct {
	// Transport reaches the agent's port of the sandbox, whatever the host of the
	// request.
	Transport http.RoundTripper
}

// A RefusalError is an answer that says that to ask again is of no use.
type RefusalError struct {
	Call    Call
	Status  int // of HTTP; 200 if the answer cannot be read
	Version int // of the agent
	Text    string
}

// Error implements error.
func (r *RefusalError) Error() string {
	old := ""
	if r.Version < r.Call.Since {
		old = fmt.Sprintf(" (the agent speaks version %d, and this came with %d)", r.Version, r.Call.Since)
	}
	return fmt.Sprintf("%s %s: %d: %.*q%s", r.Call.Method, r.Call.Path, r.Status, excerpt, r.Text, old)
}

// Refused reports whether an agent has answered, and refused.
func Refused(err error) bool {
	_, ok := errors.AsType[*RefusalError](err)
	return ok
}

// ErrNoMount is what [ServeDriveOver] returns if the sandbox does not have that
// mount.
var ErrNoMount = errors.New("the sandbox has no such mount")

// State asks whether the sandbox may sleep.
func (c Client) State(ctx context.Context) (State, error) {
	return ask[State](ctx, c, AskState, nil)
}

// Woken tells the agent that it came back from disk.
func (c Client) Woken(ctx context.Context) error { return c.call(ctx, TellWoken, nil, nil) }

// Identify tells the agent whose it is.
func (c Client) Identify(ctx context.Context, in Identity) (Identified, error) {
	return ask[Identified](ctx, c, Identify, in)
}

// IdentifyFirst is Identify of an agent that starts: it asks until there is an
// answer.
func (c Client) IdentifyFirst(ctx context.Context, in Identity) (out Identified, err error) {
	err = insist(ctx, func() (err error) {
		out, err = c.Identify(ctx, in)
		return err
	})
	return out, err
}

// SetVariables replaces the variables of the platform.
func (c Client) SetVariables(ctx context.Context, in Variables) error {
	return c.call(ctx, SetVariables, in, nil)
}

// Healthy waits until an agent that starts answers.
func (c Client) Healthy(ctx context.Context) error {
	return insist(ctx, func() error { return c.call(ctx, AskHealth, nil, nil) })
}

// Quiesce ends every process within some time, and returns what ran.
func (c Client) Quiesce(ctx context.Context, wait time.Duration) (out Quiesced, err error) {
	seconds := int(wait / time.Second)
	raw, err := json.Marshal(Quiet{&seconds})
	if err != nil {
		return out, err
	}
	err = c.send(ctx, Quiesce, bytes.NewReader(raw), processesMax, &out)
	return out, err
}

// Unpack gives the sandbox the files of a tar stream.
func (c Client) Unpack(ctx context.Context, files io.Reader) error {
	return c.send(ctx, Unpack, files, answerMax, nil)
}

// Stop ends every process, and returns when none is left or ctx has ended.
func (c Client) Stop(ctx context.Context) error { return c.call(ctx, Stop, nil, nil) }

// StartProcess starts a process again. The body is one of [Quiesced].
func (c Client) StartProcess(ctx context.Context, body any) error {
	return c.call(ctx, StartProcess, body, nil)
}

// ResumeArchive lets a sandbox that was quiesced start processes again.
func (c Client) ResumeArchive(ctx context.Context) error {
	return c.call(ctx, ResumeArchive, nil, nil)
}

// Collect returns what processes wrote after a stamp.
func (c Client) Collect(ctx context.Context, after int64) (out Collected, err error) {
	err = c.send(ctx, CollectLogs.after(after), nil, collectedMax, &out)
	return out, err
}

// AwaitLogs waits until a process has written something after a stamp.
func (c Client) AwaitLogs(ctx context.Context, after int64) error {
	return c.send(ctx, AwaitLogs.after(after), nil, answerMax, nil)
}

// BeginImage has the agent run the program of the image.
func (c Client) BeginImage(ctx context.Context, in Image) error {
	return c.call(ctx, BeginImage, in, nil)
}

// AwaitImage waits until the process of the image is not as it was in the answer
// with that change; 0 is for none.
func (c Client) AwaitImage(ctx context.Context, change int64) (out ImageState, err error) {
	err = c.send(ctx, AwaitImage.after(change), nil, imageStateMax, &out)
	return out, err
}

// after returns the call with a stamp.
func (c Call) after(stamp int64) Call {
	c.Path += "?after=" + strconv.FormatInt(stamp, 10)
	return c
}

// PrepareDrive makes a mount point.
func (c Client) PrepareDrive(ctx context.Context, in Mount) (Prepared, error) {
	return ask[Prepared](ctx, c, PrepareDrive, in)
}

// DropDrive ends what belongs to a mount that is gone.
func (c Client) DropDrive(ctx context.Context, id string) error {
	return c.call(ctx, DropDrive.of(id), nil, nil)
}

// ServeDriveOver makes a connection to the agent one over which the agent asks
// about a mount. What the agent has sent already is in the reader. It closes conn
// if ctx ends before it returns.
func ServeDriveOver(ctx context.Context, conn net.Conn, id string) (*bufio.Reader, error) {
	from, err := become(ctx, conn, ServeDrive.of(id), DriveProtocol)
	if refusal, ok := errors.AsType[*RefusalError](err); ok && refusal.Status == http.StatusNotFound {
		return nil, ErrNoMount
	}
	return from, err
}

// ConnectLoopbackOver makes a connection to the agent one to a port of a loopback
// address of the sandbox. What the server has sent already is in the reader. A
// [RefusalError] says that nobody listens there, or that the agent is older than the
// call. It closes conn if ctx ends before it returns.
func ConnectLoopbackOver(ctx context.Context, conn net.Conn, port uint16) (*bufio.Reader, error) {
	return become(ctx, conn, ConnectLoopback.of(strconv.Itoa(int(port))), LoopbackProtocol)
}

// become makes a call over a connection, which then speaks another protocol. It closes
// conn if ctx ends before it returns.
func become(ctx context.Context, conn net.Conn, call Call, protocol string) (*bufio.Reader, error) {
	stop := context.AfterFunc(ctx, func() { _ = conn.Close() })
	defer stop()
	r, err := http.NewRequestWithContext(ctx, call.Method, call.url(), http.NoBody)
	if err != nil {
		return nil, err
	}
	r.Header.Set("Connection", "Upgrade")
	r.Header.Set("Upgrade", protocol)
	if err := r.Write(conn); err != nil {
		return nil, err
	}
	from := bufio.NewReader(conn)
	resp, err := http.ReadResponse(from, r) //nolint:bodyclose // what follows is no body
	if err != nil {
		return nil, err
	}
	if resp.StatusCode != http.StatusSwitchingProtocols {
		return nil, &RefusalError{call, resp.StatusCode, version(resp), resp.Status}
	}
	return from, nil
}

// of returns the call about one mount, or one port.
func (c Call) of(id string) Call {
	c.Path = strings.ReplaceAll(c.Path, idParam, id)
	return c
}

// url names the agent's port for logs; the transport knows the way.
func (c Call) url() string { return "http://sandbox:" + strconv.Itoa(doze.AgentPort) + c.Path }

// insist asks the agent of a machine that starts until it answers.
func insist(ctx context.Context, ask func() error) error {
	for {
		err := ask()
		if err == nil || Refused(err) {
			return err
		}
		select {
		case <-ctx.Done():
			return errors.Join(context.Cause(ctx), err)
		case <-time.After(bootPoll):
		}
	}
}

// ask makes a call that answers something.
func ask[Out any](ctx context.Context, c Client, call Call, in any) (out Out, err error) {
	err = c.call(ctx, call, in, &out)
	return out, err
}

// call makes a call with a JSON body, or with none.
func (c Client) call(ctx context.Context, call Call, in, out any) error {
	if in == nil {
		return c.send(ctx, call, nil, answerMax, out)
	}
	raw, err := json.Marshal(in)
	if err != nil {
		return err
	}
	return c.send(ctx, call, bytes.NewReader(raw), answerMax, out)
}

// send makes a call with any body and a bound for the answer. Without out, its
// body does not matter.
func (c Client) send(ctx context.Context, call Call, body io.Reader, most int64, out any) error {
	r, err := http.NewRequestWithContext(ctx, call.Method, call.url(), body)
	if err != nil {
		return err
	}
	resp, err := c.Transport.RoundTrip(r)
	if err != nil {
		return err
	}
	defer func() { _ = resp.Body.Close() }()
	raw, err := io.ReadAll(io.LimitReader(resp.Body, most))
	if err != nil {
		return err
	}
	if resp.StatusCode != http.StatusOK {
		return &RefusalError{call, resp.StatusCode, version(resp), string(raw)}
	}
	if out == nil {
		return nil
	}
	if err := json.Unmarshal(raw, out); err != nil {
		return &RefusalError{call, resp.StatusCode, version(resp), err.Error()}
	}
	return nil
}

// version is what an agent says that it speaks. It is the word of the sandbox:
// it is good for messages, and for nothing else.
func version(resp *http.Response) int {
	v, _ := strconv.Atoi(resp.Header.Get(VersionHeader)) // 0 is for those that do not say
	return v
}
