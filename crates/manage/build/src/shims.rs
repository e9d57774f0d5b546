//! The shims: one worker for each language, with the adapters for other platforms. They are built
//! into this program, which writes them to a folder before it starts workers.
//!
//! This module must not know functions or sandboxes, or who starts a worker.

use std::fs;
use std::io;
use std::os::unix::fs::{MetadataExt as _, PermissionsExt};
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use mote_process::companion::{OWN_PROGRAM, Role};
use rustix::fs::{AtFlags, CWD, linkat};

/// Python's options, which come before the path of its shim: -s ignores a user's site folder, -S
/// starts without `site`, -u turns output buffering off, and -B writes no bytecode, because the
/// code folder is read-only. PYTHON* variables are not ignored, because an interpreter receives
/// only those that its function sets.
pub const PYTHON_OPTIONS: &str = "-sSuB";
/// The path of Python's shim inside the folder of the shims.
pub const PYTHON_SHIM: &str = "python/mote_shim.py";
/// The file that names the interpreter that has compiled Python's shim; see [`compile_python`].
const PYTHON_COMPILED: &str = "python/compiled";
/// The path at which sandboxes show the folder of the shims. Compiled modules contain this path for
/// error traces.
const INSIDE: &str = "/mote";
/// Compiles the files in a folder, so that processes with other user ids can read the result.
/// Python uses a compiled module only as long as the time and the length of its source are
/// unchanged.
const COMPILE: &str = "\
import compileall, os, py_compile, sys
os.umask(0o022)
mode = py_compile.PycInvalidationMode.TIMESTAMP
done = compileall.compile_dir(sys.argv[1], ddir=sys.argv[2], quiet=2, invalidation_mode=mode)
sys.exit(not done)
";
/// The path of Node's shim inside the folder of the shims.
pub const NODE_SHIM: &str = "node/mote_shim.mjs";
/// Starts Node's shim with the code that [`compile_node`] has compiled.
pub const NODE_START: &str = "node/mote_start.cjs";
/// The path of the file that starts Node's shim on Bun.
pub const BUN_SHIM: &str = "node/mote_bun.mjs";
/// Bun's options, which come before the path of the shim. Without the first, Bun downloads packages
/// that it does not find; without the others, it reads settings from the current folder.
pub const BUN_OPTIONS: [&str; 3] = ["--no-install", "--no-env-file", "--config=/dev/null"];
/// The path of the file that starts Node's shim on Deno.
pub const DENO_SHIM: &str = "node/mote_deno.mjs";
/// Deno's options, which come before the path of the shim. The sandbox alone decides what a function
/// may do, so Deno permits everything. Deno reads no settings, downloads nothing, and takes packages
/// from `node_modules`. As in Node, a `.js` file without `import` and `export` is a CommonJS module.
pub const DENO_OPTIONS: [&str; 9] = [
    "run",
    "--quiet",
    "--allow-all",
    "--no-config",
    "--no-lock",
    "--no-remote",
    "--no-code-cache",
    "--node-modules-dir=manual",
    "--unstable-detect-cjs",
];
/// The file that names the interpreter that has compiled Node's shim.
const NODE_COMPILED: &str = "node/compiled";
/// The code that Node has compiled. Node does not notice if the code belongs to another text.
const NODE_CODE: &str = "node/mote_worker.compiled";

/// Texts that the build has compressed together; see `build.rs`.
struct Archive {
    /// The path of each text inside `shims/`, and the length of the text.
    files: &'static [(&'static str, usize)],
    packed: &'static [u8],
}

// Defines the constants SHIMS, GO and STANDALONE.
include!(concat!(env!("OUT_DIR"), "/archives.rs"));

/// Decompressed texts. They use memory until drop.
#[derive(Debug)]
pub struct Files {
    text: String,
    files: &'static [(&'static str, usize)],
}

impl Files {
    fn of(archive: &Archive) -> Self {
        let bytes = miniz_oxide::inflate::decompress_to_vec(archive.packed)
            .expect("the build has compressed them");
        let text = String::from_utf8(bytes).expect("the build has read them as UTF-8");
        Self { text, files: archive.files }
    }

    /// All texts, each with its path inside `shims/`.
    pub fn iter(&self) -> impl Iterator<Item = (&'static str, &str)> {
        let mut at = 0;
        self.files.iter().map(move |(path, length)| {
            at += length;
            (*path, &self.text[at - length..at])
        })
    }

    /// The text with this path. It must be one of these texts.
    pub fn text(&self, path: &str) -> &str {
        let found = self.iter().find(|(own, _)| *own == path);
        found.map(|(_, text)| text).expect("a path that build.rs names")
    }
}

/// The shims of Python and Node.
pub fn files() -> Files {
    Files::of(&SHIMS)
}

/// The server for container images that do not contain `mote`.
pub fn standalone() -> Files {
    Files::of(&STANDALONE)
}

/// The worker of Go functions, and the modules that the node provides to Go functions.
pub fn go() -> Files {
    Files::of(&GO)
}

/// Puts this program next to the shims under the name of the worker of chains; see [`put_program`].
pub fn unpack_chain(data_dir: &Path) -> Result<(), String> {
    put_program(Path::new(OWN_PROGRAM), &data_dir.join("shims/chain"), Role::Chain.name())
}

/// Puts the program that compiles and runs WebAssembly next to the shims; see [`put_program`].
pub fn unpack_wasm(data_dir: &Path, program: &Path) -> Result<(), String> {
    put_program(program, &data_dir.join("shims/wasm"), "mote-wasm")
}

/// Puts a program into a folder next to the shims, so that sandboxes can show it. This makes a hard
/// link, or a copy if the data folder is on another file system. If the right file is already
/// there, nothing changes. Blocks.
fn put_program(program: &Path, folder: &Path, name: &str) -> Result<(), String> {
    let own = fs::metadata(program).map_err(|error| format!("{name}: {error}"))?;
    let path = folder.join(name);
    let same = |held: &fs::Metadata| {
        let is_linked = (held.dev(), held.ino()) == (own.dev(), own.ino());
        let is_newer = held.modified().ok() >= own.modified().ok();
        is_linked || (held.len() == own.len() && is_newer)
    };
    if fs::metadata(&path).is_ok_and(|held| same(&held)) {
        return Ok(());
    }
    let put = || -> io::Result<()> {
        fs::create_dir_all(folder)?;
        fs::set_permissions(folder, fs::Permissions::from_mode(0o755))?;
        let fresh = path.with_extension("new");
        if fs::exists(&fresh)? {
            fs::remove_file(&fresh)?;
        }
        // In a sandbox, only a file that everybody may execute can be used. If this program is not
        // such a file, it is copied, because a hard link would have the same mode.
        let is_executable = own.mode() & 0o555 == 0o555;
        let follow = AtFlags::SYMLINK_FOLLOW;
        if !is_executable || linkat(CWD, program, CWD, &fresh, follow).is_err() {
            fs::copy(program, &fresh)?;
            fs::set_permissions(&fresh, fs::Permissions::from_mode(0o755))?;
        }
        fs::rename(&fresh, &path)
    };
    put().map_err(|error| format!("cannot put {name} into {}: {error}", folder.display()))
}

/// Compiles the Python shim in `root`, the folder of the shims, with the interpreter that will run
/// it. Otherwise each start of an interpreter compiles the shim, which takes longer than the rest
/// of the start. Returns `None` if the same interpreter has already compiled the shim.
pub fn compile_python(root: &Path, program: &Path, version: &str) -> Option<Compilation> {
    let mut command = Command::new(program);
    command.args(["-ISB", "-c", COMPILE]).arg(root.join("python")).arg(format!("{INSIDE}/python"));
    Compilation::new(root.join(PYTHON_COMPILED), version, command)
}

/// Compiles Node's shim in the same way as [`compile_python`] compiles Python's.
pub fn compile_node(root: &Path, program: &Path, version: &str) -> Option<Compilation> {
    let mut command = Command::new(program);
    // NODE_OPTIONS is left out, because Node does not use code that was compiled with other
    // options.
    command.arg(root.join(NODE_START)).arg("--compile").env_remove("NODE_OPTIONS");
    Compilation::new(root.join(NODE_COMPILED), version, command)
}

#[derive(Debug)]
pub struct Compilation {
    /// The command that compiles the shim. The caller must limit its time.
    pub command: Command,
    /// Must receive the output of the command.
    pub note: Note,
}

/// The file that says which interpreter has compiled a shim.
#[derive(Debug)]
pub struct Note {
    path: PathBuf,
    by: String,
}

impl Compilation {
    fn new(path: PathBuf, version: &str, mut command: Command) -> Option<Self> {
        let by = format!("{} {version}\n", command.get_program().to_string_lossy());
        command.stdin(Stdio::null());
        let is_done = fs::read_to_string(&path).is_ok_and(|held| held == by);
        (!is_done).then_some(Self { command, note: Note { path, by } })
    }
}

impl Note {
    /// Writes the file if the command has succeeded. Otherwise returns its error.
    pub fn ended(&self, output: &Output) -> io::Result<()> {
        if output.status.success() {
            return fs::write(&self.path, &self.by);
        }
        let said = String::from_utf8_lossy(&output.stderr);
        let last = said.lines().last().unwrap_or("it says nothing");
        Err(io::Error::other(format!("{}: {last}", output.status)))
    }
}

/// Writes the shims of this build below `data_dir` and returns their folder. Files that are already
/// right are not written again, so that a start normally writes nothing to the disk.
pub fn unpack(data_dir: &Path) -> io::Result<PathBuf> {
    let root = data_dir.join("shims");
    for (name, text) in files().iter() {
        let path = root.join(name);
        if fs::read(&path).is_ok_and(|held| held == text.as_bytes()) {
            continue;
        }
        let folder = path.parent().unwrap_or(&root);
        fs::create_dir_all(folder)?;
        // The shim has changed, so all code compiled from the previous shim is removed.
        for compiled in [PYTHON_COMPILED, NODE_COMPILED, NODE_CODE] {
            let _ = fs::remove_file(root.join(compiled));
        }
        // The new file is written under another name and then renamed, so that a node that is
        // already running never reads a partial shim.
        let fresh = path.with_extension("new");
        fs::write(&fresh, text)?;
        fs::set_permissions(&fresh, fs::Permissions::from_mode(0o644))?;
        fs::rename(&fresh, &path)?;
        fs::set_permissions(folder, fs::Permissions::from_mode(0o755))?;
    }
    fs::set_permissions(&root, fs::Permissions::from_mode(0o755))?;
    if root.join("chain").exists()
        && let Err(error) = unpack_chain(data_dir)
    {
        tracing::error!("chains cannot start: {error}");
    }
    Ok(root)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run(compilation: Option<Compilation>) -> io::Result<()> {
        let Some(mut compilation) = compilation else { return Ok(()) };
        let output = compilation.command.output()?;
        compilation.note.ended(&output)
    }

    #[test]
    fn python_loads_what_was_compiled_for_it() {
        let data = std::env::temp_dir().join(format!("mote-compiled-{}", std::process::id()));
        let root = unpack(&data).unwrap();
        let python = Path::new("python3");
        run(compile_python(&root, python, "1")).unwrap();
        let modules = || fs::read_dir(root.join("python/__pycache__")).unwrap().count();
        assert!(modules() >= 4, "{} modules", modules());
        // Prints whether the compiled file contains the sandbox's path of its source.
        let code = "import sys; sys.path.insert(0, sys.argv[1]); sys.argv[0] = ''
import importlib.util
path = importlib.util.find_spec('mote_worker').cached
print(b'/mote/python/mote_worker.py' in open(path, 'rb').read())";
        let asked = |root: &Path| {
            let mut command = Command::new("python3");
            let output = command.args(["-B", "-c", code]).arg(root.join("python")).output();
            String::from_utf8(output.unwrap().stdout).unwrap()
        };
        assert_eq!(asked(&root), "True\n");
        // The same interpreter does not compile the shim again. Another interpreter does, and so
        // does the same interpreter after the shim has changed.
        let cached = root.join("python/__pycache__");
        for (version, changed, again) in
            [("1", false, false), ("2", false, true), ("2", true, true)]
        {
            fs::remove_dir_all(&cached).unwrap();
            if changed {
                fs::write(root.join("python/mote_worker.py"), "").unwrap();
                unpack(&data).unwrap();
            }
            run(compile_python(&root, python, version)).unwrap();
            assert_eq!(cached.exists(), again, "version {version}, changed: {changed}");
            fs::create_dir_all(&cached).unwrap();
        }
        fs::remove_dir_all(&data).unwrap();
    }

    #[test]
    fn node_takes_what_was_compiled_for_it() {
        let data = std::env::temp_dir().join(format!("mote-compiled-js-{}", std::process::id()));
        let root = unpack(&data).unwrap();
        run(compile_node(&root, Path::new("node"), "1")).unwrap();
        let code = root.join(NODE_CODE);
        let program = "const fs = require('fs'), vm = require('vm');
            const [file, compiled] = process.argv.slice(1);
            const source = require('module').wrap(fs.readFileSync(file, 'latin1'));
            const cachedData = fs.readFileSync(compiled);
            console.log(new vm.Script(source, { cachedData }).cachedDataRejected);";
        let mut command = Command::new("node");
        command.args(["-e", program]).arg(root.join("node/mote_worker.cjs")).arg(&code);
        assert_eq!(String::from_utf8(command.output().unwrap().stdout).unwrap(), "false\n");
        // The compiled code must be removed when the text from which it was compiled changes.
        fs::write(root.join("node/mote_worker.cjs"), "").unwrap();
        unpack(&data).unwrap();
        assert!(!code.exists());
        run(compile_node(&root, Path::new("node"), "1")).unwrap();
        assert!(code.exists());
        fs::remove_dir_all(&data).unwrap();
    }

    #[test]
    fn a_program_that_cannot_compile_says_why() {
        let data = std::env::temp_dir().join(format!("mote-uncompiled-{}", std::process::id()));
        let root = unpack(&data).unwrap();
        let failed = run(compile_python(&root, Path::new("false"), "1")).unwrap_err().to_string();
        assert_eq!(failed, "exit status: 1: it says nothing");
        assert!(run(compile_python(&root, Path::new("/no/python"), "1")).is_err());
        fs::remove_dir_all(&data).unwrap();
    }
}
