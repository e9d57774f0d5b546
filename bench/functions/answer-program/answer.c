/* The smallest program that answers: what a process per call costs when it does nothing itself.
 *
 * With -DNO_LIBC -nostdlib it is just its two system calls. A C library adds its own start: that
 * of glibc asks the processor about itself some 30 times (cpuid), and in a virtual machine each
 * question leaves the machine, which can cost more than the process.
 */
#ifdef NO_LIBC
#include <sys/syscall.h>

static long call(long number, long a, const void *b, long c) {
#if defined(__x86_64__)
  long result;
  __asm__ volatile("syscall" : "=a"(result) : "a"(number), "D"(a), "S"(b), "d"(c)
                   : "rcx", "r11", "memory");
  return result;
#elif defined(__aarch64__)
  register long x8 __asm__("x8") = number, x0 __asm__("x0") = a, x2 __asm__("x2") = c;
  register const void *x1 __asm__("x1") = b;
  __asm__ volatile("svc 0" : "+r"(x0) : "r"(x8), "r"(x1), "r"(x2) : "memory");
  return x0;
#else
#error "only x86-64 and aarch64"
#endif
}

void _start(void) {
  long put = call(SYS_write, 1, "mote", 4);
  call(SYS_exit_group, put == 4 ? 0 : 1, 0, 0);
  __builtin_unreachable();
}
#else
#include <unistd.h>

int main(void) { return write(1, "mote", 4) == 4 ? 0 : 1; }
#endif
