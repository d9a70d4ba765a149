package node

import (
	"time"

	"github.com/dozehq/doze"
	"github.com/dozehq/doze/internal/fleet"
)

// What a record has of an order and of mounts, with the names that members have on
// disk since the first release. The types of [fleet] are what is said between
// processes: they change with their versions, and records outlive those.

// savedOrder is what is saved of a [fleet.Order]. Not saved are the variables, some of
// which are secrets: the agent has them; the login of a registry; and the network,
// which control tells after each start.
type savedOrder struct {
	UID, Name, Workspace, Region, Image string
	Memory, Storage                     doze.Megabytes
	Grace                               time.Duration
	IPTables, Tun, Containers           bool
	NoEntrypoint                        bool
	Volumes                             []savedVolume
	Authority, From                     string
	Epoch                               uint64 `json:",omitempty"`
}

type savedVolume struct {
	ID, Path string
	ReadOnly bool
	Size     doze.Megabytes
	Epoch    uint64 `json:",omitempty"`
}

// savedMount is a [fleet.DriveMount].
type savedMount struct {
	doze.DriveMount

	ID      string  `json:"id"`
	DriveID string  `json:"driveId"`
	UID     *uint32 `json:"uid"`
	GID     *uint32 `json:"gid"`
}

func orderToSave(o fleet.Order) savedOrder {
	s := savedOrder{
		UID: o.UID, Name: o.Name, Workspace: o.Workspace, Region: o.Region, Image: o.Image, Memory: o.Memory, Storage: o.Storage, Grace: o.Grace,
		IPTables: o.IPTables, Tun: o.Tun, Containers: o.Containers, NoEntrypoint: o.NoEntrypoint, Authority: o.Authority, From: o.From, Epoch: o.Epoch,
	}
	for _, v := range o.Volumes {
		s.Volumes = append(s.Volumes, savedVolume(v))
	}
	return s
}

func (s *savedOrder) order() fleet.Order {
	o := fleet.Order{
		UID: s.UID, Name: s.Name, Workspace: s.Workspace, Region: s.Region, Image: s.Image, Memory: s.Memory, Storage: s.Storage, Grace: s.Grace,
		IPTables: s.IPTables, Tun: s.Tun, Containers: s.Containers, NoEntrypoint: s.NoEntrypoint, Authority: s.Authority, From: s.From, Epoch: s.Epoch,
	}
	for _, v := range s.Volumes {
		o.Volumes = append(o.Volumes, fleet.Volume(v))
	}
	return o
}

func mountsToSave(all []fleet.DriveMount) (saved []savedMount) {
	for _, m := range all {
		saved = append(saved, savedMount(m))
	}
	return saved
}

func savedMounts(all []savedMount) (mounts []fleet.DriveMount) {
	for _, m := range all {
		mounts = append(mounts, fleet.DriveMount(m))
	}
	return mounts
}
