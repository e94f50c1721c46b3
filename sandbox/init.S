/* PID 1 of a sandbox, as small as it can be: a page of code instead of an interpreter.
 *
 * It does what `guard.run_init` does, which is also what runs where this cannot. Descriptors:
 *   3     signalfd of SIGCHLD, not blocking
 *   4, 5  pidfds, with whose processes we end
 *   6     where the worker's wait status goes, as 4 bytes
 * argv[0] is the name of this process. The worker is process 2 of the namespace.
 * Exit status: the worker's, or 128 and the signal that ended it; 137 if we end before it.
 *
 * The stack below: at 0 the status, at 16 three struct pollfd, at 64 a struct signalfd_siginfo, at 192
 * a struct timespec.
 *
 * `init.py` holds the bytes that this assembles to; tests/sandbox/test_init.py compares them:
 *   cc -c -nostdlib init.S && objcopy -O binary -j .text init.o
 */

#if defined(__x86_64__)

    .intel_syntax noprefix
    .globl _start
_start:
    mov     rbx, rsp
    mov     edi, 4                      /* prctl(PR_SET_DUMPABLE, 0): exec has made us dumpable */
    xor     esi, esi
    mov     eax, 157
    syscall
    mov     edi, 15                     /* prctl(PR_SET_NAME, argv[0]) */
    mov     rsi, [rbx + 8]
    mov     eax, 157
    syscall
    sub     rsp, 256
reap:                                   /* first look, then wait; look at both after each */
    mov     rdi, -1                     /* wait4(-1, &status, WNOHANG, NULL) */
    mov     rsi, rsp
    mov     edx, 1
    xor     r10d, r10d
    mov     eax, 61
    syscall
    cmp     rax, 2
    je      ended
    mov     rbx, -1                     /* wait where there was nobody to reap */
    test    rax, rax
    js      lost
    jz      look
    xor     ebx, ebx
look:
    lea     rdi, [rsp + 16]             /* poll({{3, POLLIN}, {4, POLLIN}, {5, POLLIN}}, 3, rbx) */
    mov     dword ptr [rdi], 3
    mov     dword ptr [rdi + 4], 1
    mov     dword ptr [rdi + 8], 4
    mov     dword ptr [rdi + 12], 1
    mov     dword ptr [rdi + 16], 5
    mov     dword ptr [rdi + 20], 1
    mov     esi, 3
    mov     rdx, rbx
    mov     eax, 7
    syscall
    mov     ax, [rsp + 30]
    or      ax, [rsp + 38]
    jnz     lost
    mov     edi, 3                      /* read(3, &siginfo, 128) */
    lea     rsi, [rsp + 64]
    mov     edx, 128
    xor     eax, eax
    syscall
    jmp     reap
ended:
    mov     edi, 6                      /* write(6, &status, 4) */
    mov     rsi, rsp
    mov     edx, 4
    mov     eax, 1
    syscall
    mov     edi, [rsp]
    mov     eax, edi
    and     eax, 127
    jz      exited
    lea     edi, [rax + 128]
    jmp     leave
exited:
    shr     edi, 8
    and     edi, 255
leave:
    mov     eax, 231                    /* exit_group */
    syscall
lost:
    mov     edi, 137
    jmp     leave

#elif defined(__aarch64__)

    .globl _start
_start:
    mov     x19, sp
    mov     x0, #4                      /* prctl(PR_SET_DUMPABLE, 0) */
    mov     x1, #0
    mov     x8, #167
    svc     #0
    mov     x0, #15                     /* prctl(PR_SET_NAME, argv[0]) */
    ldr     x1, [x19, #8]
    mov     x8, #167
    svc     #0
    sub     sp, sp, #256
reap:
    mov     x0, #-1                     /* wait4(-1, &status, WNOHANG, NULL) */
    mov     x1, sp
    mov     x2, #1
    mov     x3, #0
    mov     x8, #260
    svc     #0
    cmp     x0, #2
    b.eq    ended
    mov     x11, #0                     /* wait where there was nobody to reap */
    cmp     x0, #0
    b.lt    lost
    b.eq    look
    stp     xzr, xzr, [sp, #192]        /* a struct timespec of no time */
    add     x11, sp, #192
look:
    add     x0, sp, #16                 /* ppoll(…, 3, x11, NULL, 0) */
    mov     w10, #1
    mov     w9, #3
    stp     w9, w10, [x0]
    mov     w9, #4
    stp     w9, w10, [x0, #8]
    mov     w9, #5
    stp     w9, w10, [x0, #16]
    mov     x1, #3
    mov     x2, x11
    mov     x3, #0
    mov     x4, #0
    mov     x8, #73
    svc     #0
    ldrh    w9, [sp, #30]
    ldrh    w10, [sp, #38]
    orr     w9, w9, w10
    cbnz    w9, lost
    mov     x0, #3                      /* read(3, &siginfo, 128) */
    add     x1, sp, #64
    mov     x2, #128
    mov     x8, #63
    svc     #0
    b       reap
ended:
    mov     x0, #6                      /* write(6, &status, 4) */
    mov     x1, sp
    mov     x2, #4
    mov     x8, #64
    svc     #0
    ldr     w0, [sp]
    and     w1, w0, #127
    cbz     w1, exited
    add     w0, w1, #128
    b       leave
exited:
    ubfx    w0, w0, #8, #8
leave:
    mov     x8, #94                     /* exit_group */
    svc     #0
lost:
    mov     w0, #137
    b       leave

#endif
