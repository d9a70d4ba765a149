// Package port lists the ports of processes and reports new ones.
package port

import (
	"cmp"
	"net/http"
	"slices"
	"strconv"

	"github.com/dozehq/doze"
	"github.com/dozehq/doze/internal/agent/body"
	"github.com/dozehq/doze/internal/agent/mistake"
	"github.com/dozehq/doze/internal/agent/proc"
	"github.com/dozehq/doze/internal/agent/route"
	"github.com/dozehq/doze/internal/httpx"
)

// Socket is a port in answers.
type Socket struct {
	PID           int    `json:"pid"` // of its owner
	Protocol      string `json:"protocol"`
	LocalAddr     string `json:"localAddr"`
	LocalPort     uint16 `json:"localPort"`
	RemoteAddr    string `json:"remoteAddr"`
	RemotePort    uint16 `json:"remotePort"`
	State         string `json:"state"` // as ss writes it
	ProcessName   string `json:"processName"`
	servesOutside int    // 2 for a port that others reach, 1 for one that serves
}

// Sockets are the ports of a process.
type Sockets struct {
	PID   int      `json:"pid"`
	Ports []Socket `json:"ports"` // one for each local port
}

// parsePID reads the {id} of a network route. Names are not taken.
func parsePID(id string) (int, error) {
	pid, err := strconv.Atoi(id)
	if err != nil || pid < 1 {
		return 0, doze.Wrap(err, doze.Invalid, "invalid PID %q; send the number of a process", mistake.Clip(id))
	}
	return pid, nil
}

// List lists the ports of a process, of its group and of their descendants.
func (m *Monitors) List(_ *http.Request, id string) (Sockets, error) {
	pid, err := parsePID(id)
	if err != nil {
		return Sockets{}, err
	}
	all, err := proc.Root.Sockets()
	if err != nil {
		return Sockets{}, doze.Wrap(err, doze.Unprocessable, "the sockets of this system cannot be listed: %v", err)
	}
	family, _ := m.processes.Family(pid)
	return Sockets{pid, portsOf(family, all)}, nil
}

// portsOf returns one socket for each local port of a family, by port: the one
// that serves, if one does.
func portsOf(family map[int]proc.Task, all []proc.Socket) []Socket {
	ports := []Socket{}
	for pid, own := range proc.Root.Owned(family, all) {
		for _, s := range own {
			p := Socket{
				PID:         pid,
				Protocol:    s.Protocol,
				LocalAddr:   s.Local.Addr().String(),
				LocalPort:   s.Local.Port(),
				RemoteAddr:  s.Remote.Addr().String(),
				RemotePort:  s.Remote.Port(),
				State:       s.State,
				ProcessName: family[pid].Name,
			}
			if s.Serves() {
				p.servesOutside = 1
				if s.Reachable() {
					p.servesOutside = 2
				}
			}
			ports = append(ports, p)
		}
	}
	slices.SortFunc(ports, func(a, b Socket) int {
		return cmp.Or(cmp.Compare(a.LocalPort, b.LocalPort), cmp.Compare(b.servesOutside, a.servesOutside), cmp.Compare(a.PID, b.PID), cmp.Compare(a.Protocol, b.Protocol))
	})
	return slices.CompactFunc(ports, func(a, b Socket) bool { return a.LocalPort == b.LocalPort })
}

// Callback is the body that starts a monitor.
type Callback struct {
	Callback string `json:"callback"`
}

func (in *Callback) Check(p *doze.Problems) { doze.CheckAddress(p, "callback", in.Callback) }

// Start reports new ports of a process to an address. Each caller may run commands
// here, so the address may be any.
func (m *Monitors) Start(w http.ResponseWriter, r *http.Request, id string) error {
	pid, err := parsePID(id)
	if err != nil {
		return err
	}
	in, err := body.Decode[Callback](w, r)
	if err != nil {
		return err
	}
	if err := m.start(r.Context(), monitor{pid, in.Callback}); err != nil {
		return err
	}
	httpx.WriteJSON(w, http.StatusOK, route.Success{Message: "Port monitoring started"})
	return nil
}

// Stop ends the reports about a process.
func (m *Monitors) Stop(_ *http.Request, id string) (route.Success, error) {
	pid, err := parsePID(id)
	if err != nil {
		return route.Success{}, err
	}
	m.stop(pid)
	return route.Success{Message: "Port monitoring stopped"}, nil
}
