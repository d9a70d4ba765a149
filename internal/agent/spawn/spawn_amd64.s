#include "go_asm.h"
#include "textflag.h"

#define SYS_rt_sigprocmask 14
#define SYS_exit 60
#define SYS_clone3 435
#define SIG_SETMASK 2
#define SIGSET_BYTES 8
#define ERRORS 0xfffffffffffff001

// func fork(b *birth) (pid int)
TEXT ·fork(SB),NOSPLIT,$0-16
	MOVQ	b+0(FP), BX

	MOVQ	$SIG_SETMASK, DI
	LEAQ	birth_blocked(BX), SI
	LEAQ	birth_before(BX), DX
	MOVQ	$SIGSET_BYTES, R10
	MOVQ	$SYS_rt_sigprocmask, AX
	SYSCALL

	LEAQ	birth_clone(BX), DI
	MOVQ	$cloneArgs__size, SI
	MOVQ	$SYS_clone3, AX
	SYSCALL
	TESTQ	AX, AX
	JZ	child
	MOVQ	AX, R12

	MOVQ	$SIG_SETMASK, DI
	LEAQ	birth_before(BX), SI
	XORQ	DX, DX
	MOVQ	$SIGSET_BYTES, R10
	MOVQ	$SYS_rt_sigprocmask, AX
	SYSCALL
	MOVQ	R12, pid+8(FP)
	RET

child:
	MOVQ	birth_next(BX), R13
again:
	MOVQ	(call_args+0)(R13), DI
	MOVQ	(call_args+8)(R13), SI
	MOVQ	(call_args+16)(R13), DX
	MOVQ	(call_args+24)(R13), R10
	MOVQ	call_number(R13), AX
	SYSCALL
	ADDQ	$call__size, R13
	CMPQ	AX, $ERRORS
	JCS	again // the last call returns with an error, or not at all

	NEGQ	AX
	MOVQ	AX, birth_err(BX)
	MOVQ	$127, DI
	MOVQ	$SYS_exit, AX
	SYSCALL
	INT	$3
