// The values that the interpreter's own facts about the machine have inside a sandbox.

import nodeModule from 'node:module';

/**
 * Replaces what is read from files and sockets that a sandbox does not have: as many processors as the function
 * may use, and loopback as the only interface. Once a function is loaded, its own limit is all of the memory.
 */
export function installSystemFacts(worker) {
  // Not imported: Bun copies the functions of a module when code imports the module for the first time, and
  // `import { totalmem } from 'node:os'` in a function must not find copies of the original ones.
  const os = nodeModule.createRequire('/')('node:os');
  const { cpus, networkInterfaces, totalmem, freemem } = os;
  const limitOf = () => worker?.spec?.memory_bytes;
  const total = (machine) => limitOf() ?? machine();
  const free = (machine) => (limitOf() ? Math.max(0, limitOf() - process.memoryUsage.rss()) : machine());
  os.totalmem = () => total(totalmem);
  os.freemem = () => free(freemem);
  // Older versions of Node do not have both of them.
  const { constrainedMemory, availableMemory } = process;
  if (constrainedMemory) process.constrainedMemory = () => total(constrainedMemory);
  if (availableMemory) process.availableMemory = () => free(availableMemory);
  if (globalThis.Deno) {
    // Deno's `os` asks this too, whose functions an import cannot replace.
    const { systemMemoryInfo } = Deno;
    Deno.systemMemoryInfo = () => {
      const machine = systemMemoryInfo();
      if (!limitOf()) return machine;
      const available = free();
      return { ...machine, total: limitOf(), free: available, available, buffers: 0, cached: 0, swapTotal: 0, swapFree: 0 };
    };
  }
  const processor = () => ({ model: '', speed: 0, times: { user: 0, nice: 0, sys: 0, idle: 0, irq: 0 } });
  os.cpus = () => {
    const found = cpus();
    return found.length ? found : Array.from({ length: os.availableParallelism?.() ?? 1 }, processor);
  };
  os.networkInterfaces = () => {
    try { return networkInterfaces(); } catch {
      return { lo: [{ address: '127.0.0.1', netmask: '255.0.0.0', family: 'IPv4', mac: '00:00:00:00:00:00', internal: true, cidr: '127.0.0.1/8' }] };
    }
  };
  nodeModule.syncBuiltinESMExports();
}
