package cpuid

import (
	"errors"
	"maps"
	"testing"
)

// saved is what a checkpoint of this processor has, with some changes.
func saved(changes func(Static)) FeatureSet {
	Initialize()
	s := maps.Clone(HostFeatureSet().Function.(Static))
	changes(s)
	return s.ToFeatureSet()
}

// TestLikeHost: programs ask the processor themselves only if they saw all its features before.
func TestLikeHost(t *testing.T) {
	newer := In{Eax: uint32(extendedFeatureInfo), Ecx: 1}
	for name, tt := range map[string]struct {
		changes  func(Static)
		like     bool
		refused  bool
		answered Out // what an emulated program finds of newer
	}{
		"the same":                   {func(Static) {}, true, false, HostFeatureSet().Query(newer)},
		"of an earlier engine":       {func(s Static) { delete(s, newer) }, true, false, Out{}},
		"another brand":              {func(s Static) { s[In{Eax: uint32(vendorID)}] = Out{Ebx: 1} }, false, false, HostFeatureSet().Query(newer)},
		"one feature fewer":          {func(s Static) { s.Remove(X86FeatureSSE3) }, false, false, HostFeatureSet().Query(newer)},
		"an unknown feature fewer":   {func(s Static) { s[newer] = Out{} }, s0(newer), false, Out{}},
		"an unknown feature more":    {func(s Static) { s[newer] = Out{Eax: 1 << 31} }, false, true, Out{Eax: 1 << 31}},
		"a later version of vectors": {func(s Static) { s[vectors] = Out{Ebx: vectorsVersion} }, false, true, HostFeatureSet().Query(newer)},
	} {
		t.Run(name, func(t *testing.T) {
			fs := saved(tt.changes)
			if got := fs.LikeHost(); got != tt.like {
				t.Errorf("it is like the host: %v", got)
			}
			var refused *ErrIncompatible
			if err := fs.CheckHostCompatible(); errors.As(err, &refused) != tt.refused {
				t.Errorf("this host takes it: %v", err)
			}
			if got := fs.Query(newer); got != tt.answered {
				t.Errorf("a program finds %+v, want %+v", got, tt.answered)
			}
		})
	}
}

// s0 reports whether this processor has nothing unknown there.
func s0(in In) bool { return HostFeatureSet().Query(in) == Out{} }

func TestMain(m *testing.M) {
	Initialize()
	m.Run()
}

// TestUnknownSaved: a kernel that boots saves what programs find, and a copy of it does too.
func TestUnknownSaved(t *testing.T) {
	for in, named := range unknown {
		want := named.of(ask(in))
		for range 2 {
			if got := HostFeatureSet().Fixed().Query(in); got != want {
				t.Errorf("of %+v it has %+v, and the processor says %+v", in, got, want)
			}
		}
	}
}
