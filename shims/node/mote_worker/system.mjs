// The values that the module `os` returns inside a sandbox.

import nodeModule from 'node:module';
import os from 'node:os';

/**
 * What `os` reads from files and sockets that a sandbox does not have: as many processors as the function
 * may use, and loopback as the only interface. Once a function is loaded, its own limit is all of the memory.
 */
export function installSystemFacts(worker) {
  const { cpus, networkInterfaces, totalmem, freemem } = os;
  os.totalmem = () => worker.spec?.memory_bytes ?? totalmem();
  os.freemem = () => {
    const limit = worker.spec?.memory_bytes;
    return limit ? Math.max(0, limit - process.memoryUsage.rss()) : freemem();
  };
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
