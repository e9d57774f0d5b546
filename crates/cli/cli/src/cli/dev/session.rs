//! A session of `mote dev`: deploys after each change, and shows what happens meanwhile.

use std::collections::{HashMap, HashSet, VecDeque};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use mote_api::client::{Client, DeployOptions, Endpoint, LogQuery};
use mote_api::exit;
use mote_api::types::{LogLine, LogStream};
use mote_node::develop::{Answer, Call, DevNode, hangup, received};
use mote_spec::Runtime;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::mpsc;
use tokio::task::{JoinError, JoinHandle};

use super::changes::Changes;
use super::project::{Packed, Project};
use super::show::{Show, time_text};
use crate::cli::failure::Failure;
use crate::cli::output::Output;

/// The most lines, and the most keys, that wait to be handled.
const WAITING_MAX: usize = 1_024;
/// A deploy that is still running after this time is mentioned.
const SLOW_DEPLOY: Duration = Duration::from_secs(1);
/// The most lines that are held for a revision until it becomes live or fails.
const HELD_LINES_MAX: usize = 200;
/// How long the session waits for a call's log lines, which are shown before the call but arrive on
/// another connection.
const CALL_DELAY_MAX: Duration = Duration::from_secs(2);
/// Calls that may wait so.
const CALLS_DELAYED_MAX: usize = 256;

/// What the developer wants.
pub(super) struct Wishes {
    pub(super) paths: Vec<PathBuf>,
    pub(super) replay: bool,
    pub(super) inspect: bool,
    /// The keys that the developer presses on a terminal.
    pub(super) keys: mpsc::Receiver<u8>,
    pub(super) has_keys: bool,
}

/// A function that has a live revision.
struct Live {
    revision: u64,
    /// Lines of later revisions, until it is known whether they become live.
    held: Vec<LogLine>,
}

/// A revision that has become live.
struct NewRevision {
    name: String,
    runtime: Runtime,
    revision: u64,
    url: Option<String>,
}

/// A repeated call, and its answer.
type Repeated = (Arc<Call>, Result<Answer, String>);

/// How a deploy of a project ended.
struct Deployed {
    project: Project,
    took_ms: f64,
    live: Vec<NewRevision>,
    /// The folder of each function's code.
    folders: Vec<(String, PathBuf)>,
    notes: Vec<String>,
    failure: Option<(Option<String>, Failure)>,
    is_unchanged: bool,
}

pub(super) struct Session {
    node: Arc<DevNode>,
    client: Client,
    output: Output,
    show: Show,
    wishes: Wishes,
    projects: Vec<Option<Project>>,
    /// The projects that have changed and wait for a deploy.
    waiting: Vec<usize>,
    running: Option<(usize, JoinHandle<Deployed>)>,
    /// When the running deploy is to be mentioned. `None` if no deploy runs or it was already
    /// mentioned.
    slow_at: Option<Instant>,
    live: HashMap<String, Live>,
    lines: mpsc::Sender<LogLine>,
    said: HashSet<String>,
    last: Option<Arc<Call>>,
    /// The answer to the last call when it was last sent.
    before: Option<Answer>,
    repeating: Option<JoinHandle<Repeated>>,
    /// Whether a deploy has asked to repeat the last call while another repetition was running.
    repeats_again: bool,
    /// Calls and answers that are shown once the lines before them have been shown.
    delayed: VecDeque<Delayed>,
    /// The position of the last line of each function's log that was shown or left out.
    read: HashMap<String, u64>,
    /// The folder in which the session began. If it is deleted and made again, relative paths lead
    /// into the new folder only after the process has entered that folder.
    place: Option<PathBuf>,
}

struct Delayed {
    what: Shown,
    /// The position of the last log line that belongs before this entry.
    after: u64,
    latest: Instant,
}

enum Shown {
    Call(Arc<Call>),
    /// A repeated call, its earlier answer, and its new answer.
    Again(Arc<Call>, Option<Answer>, Answer),
}

impl Shown {
    fn function(&self) -> &str {
        let (Self::Call(call) | Self::Again(call, ..)) = self;
        call.function.as_str()
    }
}

/// Runs a session until the developer ends it. Returns the exit code.
pub(super) async fn run(mut node: DevNode, wishes: Wishes, output: Output) -> u8 {
    let mut calls = std::mem::replace(&mut node.calls, mpsc::channel(1).1);
    let (lines, mut logs) = mpsc::channel(WAITING_MAX);
    let client = Client::new(Endpoint::Unix(node.socket.clone()));
    let projects: Vec<Project> =
        wishes.paths.iter().map(|path| Project::new(path, wishes.inspect)).collect();
    let (sender, mut changed) = mpsc::channel(WAITING_MAX);
    for (number, project) in projects.iter().enumerate() {
        match Changes::of(&project.path) {
            Ok(changes) => drop(tokio::spawn(follow(changes, number, sender.clone()))),
            Err(error) => {
                let shown = project.path.display().to_string();
                output.failure(&Failure::of_file("M0102", &shown, &error));
                return exit::INVALID;
            }
        }
    }
    drop(sender);
    let mut session = Session {
        node: Arc::new(node),
        client,
        output,
        show: Show::new(output),
        waiting: (0..projects.len()).collect(),
        projects: projects.into_iter().map(Some).collect(),
        wishes,
        running: None,
        slow_at: None,
        live: HashMap::new(),
        lines,
        said: HashSet::new(),
        last: None,
        before: None,
        repeating: None,
        repeats_again: false,
        delayed: VecDeque::new(),
        read: HashMap::new(),
        place: std::env::current_dir().ok(),
    };
    let mut hangup = hangup();
    let (Ok(mut interrupt), Ok(mut terminate)) =
        (signal(SignalKind::interrupt()), signal(SignalKind::terminate()))
    else {
        return exit::FAILED;
    };
    session.greet();
    loop {
        session.begin();
        tokio::select! {
            biased;
            _ = interrupt.recv() => return exit::DONE,
            _ = terminate.recv() => return exit::DONE,
            () = received(hangup.as_mut()) => return exit::DONE,
            Some(key) = session.wishes.keys.recv() => {
                if !session.obey(key) {
                    return exit::DONE;
                }
            }
            ended = ended(session.running.as_mut().map(|(_, task)| task)) => {
                session.deployed(ended).await;
            }
            () = at(session.slow_at) => session.mention(),
            Some(call) = calls.recv() => session.called(call),
            Some(line) = logs.recv() => session.logged(line),
            () = at(session.delayed.front().map(|first| first.latest)) => session.show_first(),
            ended = ended(session.repeating.as_mut()) => session.repeated(ended),
            change = changed.recv() => match change {
                Some(Ok(number)) => session.wait_for(number),
                Some(Err(error)) => {
                    session.show.failed(&format!("changes are no longer noticed: {error}"));
                }
                None => {}
            },
        }
    }
}

/// Sends the number of a project whenever its files have changed.
async fn follow(mut changes: Changes, number: usize, sender: mpsc::Sender<std::io::Result<usize>>) {
    loop {
        let change = changes.next().await;
        let is_end = change.is_err();
        if sender.send(change.map(|()| number)).await.is_err() || is_end {
            // The channel must not close, because a closed channel would be ready at once.
            std::future::pending::<()>().await;
        }
    }
}

/// Resolves when the task has ended. Without a task, never resolves.
async fn ended<T>(task: Option<&mut JoinHandle<T>>) -> Result<T, JoinError> {
    match task {
        Some(task) => task.await,
        None => std::future::pending().await,
    }
}

/// Resolves at this time. Without a time, never resolves.
async fn at(time: Option<Instant>) {
    match time {
        Some(time) => tokio::time::sleep_until(time.into()).await,
        None => std::future::pending().await,
    }
}

impl Session {
    fn greet(&self) {
        let mut text = format!("mote dev at http://{}", shown(self.node.http));
        if let Some(coap) = self.node.coap {
            text.push_str(&format!(", coap://{coap}"));
        }
        for (scheme, address) in &self.node.mqtt {
            text.push_str(&format!(", {scheme}://{address}"));
        }
        self.show.line(&text);
        let socket = self.node.socket.display();
        self.show.note(&format!("other commands: MOTE_SOCKET={socket} mote list"));
        if self.wishes.has_keys {
            self.show.note("keys: r restart   i repeat the last call   c clear   q quit");
        }
        for (name, detail) in &self.node.notes {
            self.show.note(&format!("{name}: {detail}"));
        }
    }

    fn wait_for(&mut self, number: usize) {
        if !self.waiting.contains(&number) {
            self.waiting.push(number);
        }
    }

    /// Begins the next deploy, unless one is running.
    fn begin(&mut self) {
        if self.running.is_some() {
            return;
        }
        let ready = self.waiting.iter().position(|number| self.projects[*number].is_some());
        let Some(number) = ready.map(|at| self.waiting.remove(at)) else { return };
        let Some(project) = self.projects[number].take() else { return };
        if let Some(place) = &self.place {
            let _ = std::env::set_current_dir(place);
        }
        let deploying = tokio::spawn(deploy(self.client.clone(), project));
        self.running = Some((number, deploying));
        self.slow_at = Some(Instant::now() + SLOW_DEPLOY);
    }

    /// Carries out the command that a key stands for. Returns false if the session is to end.
    fn obey(&mut self, key: u8) -> bool {
        match key {
            b'q' => return false,
            b'c' => self.show.clear(),
            b'i' => self.repeat(),
            b'r' => {
                for (number, project) in self.projects.iter_mut().enumerate() {
                    project.iter_mut().for_each(Project::forget);
                    if !self.waiting.contains(&number) {
                        self.waiting.push(number);
                    }
                }
            }
            _ => {}
        }
        true
    }

    /// Reports that a deploy is taking a while.
    fn mention(&mut self) {
        self.slow_at = None;
        self.show.note("a deploy is running: it installs packages or builds");
    }

    fn called(&mut self, call: Call) {
        let call = Arc::new(call);
        self.delay(Shown::Call(call.clone()));
        // A call that another function makes is a part of a call that can be repeated.
        if call.trigger != mote_core::Trigger::Function {
            self.before = None;
            self.last = Some(call);
        }
    }

    fn delay(&mut self, what: Shown) {
        let after = self.node.last_line(what.function());
        let latest = Instant::now() + CALL_DELAY_MAX;
        self.delayed.push_back(Delayed { what, after, latest });
        if self.delayed.len() > CALLS_DELAYED_MAX {
            self.show_first();
        }
        self.show_ready();
    }

    /// Shows the calls whose lines have been shown.
    fn show_ready(&mut self) {
        while let Some(first) = self.delayed.front()
            && self.read.get(first.what.function()).copied().unwrap_or(0) >= first.after
        {
            self.show_first();
        }
    }

    fn show_first(&mut self) {
        match self.delayed.pop_front().map(|first| first.what) {
            Some(Shown::Call(call)) => self.show.call(&call),
            Some(Shown::Again(call, before, answer)) => {
                self.show.repeated(&call, before.as_ref(), &answer);
            }
            None => {}
        }
    }

    fn logged(&mut self, line: LogLine) {
        let (function, position) = (line.function.clone(), line.sequence);
        self.show_line(line);
        let read = self.read.entry(function).or_default();
        *read = position.max(*read);
        self.show_ready();
    }

    fn show_line(&mut self, line: LogLine) {
        let is_platform = line.stream == LogStream::Platform;
        let is_plain = is_platform && matches!(&*line.level, "info" | "debug");
        // The outcome of a deploy is already shown elsewhere.
        let is_known = is_platform && line.message.starts_with("start failed: ");
        if is_known || (is_plain && !self.output.verbose) {
            return;
        }
        match self.live.get_mut(&line.function) {
            Some(live) if line.revision > live.revision => {
                if live.held.len() < HELD_LINES_MAX {
                    live.held.push(line);
                }
            }
            _ => self.show.log(&line),
        }
    }

    fn repeat(&mut self) {
        if self.repeating.is_some() {
            self.repeats_again = true;
            return;
        }
        let Some(call) = self.last.clone() else { return };
        if self.before.is_none() {
            self.before = call.answer();
        }
        let node = self.node.clone();
        self.repeating = Some(tokio::spawn(async move {
            let answer = node.repeat(&call).await;
            (call, answer)
        }));
    }

    fn repeated(&mut self, ended: Result<Repeated, JoinError>) {
        self.repeating = None;
        match ended {
            Ok((call, Ok(answer))) => {
                // Meanwhile, another call may have become the last one.
                let is_last = self.last.as_ref().is_some_and(|last| Arc::ptr_eq(last, &call));
                let before = if is_last { self.before.replace(answer.clone()) } else { None };
                self.delay(Shown::Again(call, before, answer));
            }
            Ok((call, Err(text))) => {
                self.show.failed(&format!("{} {}: {text}", call.method, call.path));
            }
            Err(_) => {}
        }
        if std::mem::take(&mut self.repeats_again) {
            self.repeat();
        }
    }

    /// Shows how a deploy ended.
    async fn deployed(&mut self, ended: Result<Deployed, JoinError>) {
        let Some((number, _)) = self.running.take() else { return };
        self.slow_at = None;
        let deployed = match ended {
            Ok(deployed) => deployed,
            Err(error) => return self.show.failed(&error.to_string()),
        };
        let Deployed { project, took_ms, live, folders, notes, failure, is_unchanged } = deployed;
        self.projects[number] = Some(project);
        for (name, folder) in folders {
            self.show.set_folder(name, &folder);
        }
        if is_unchanged {
            return;
        }
        for note in notes {
            if self.said.insert(note.clone()) {
                self.show.note(&note);
            }
        }
        let has_new = !live.is_empty();
        for NewRevision { name, runtime, revision, url } in live {
            let is_first = !self.live.contains_key(&name);
            let known = self.live.entry(name.clone());
            let known = known.or_insert_with(|| Live { revision, held: Vec::new() });
            known.revision = revision;
            let held = std::mem::take(&mut known.held);
            let several = self.live.len() > 1 || self.projects.len() > 1;
            self.show.set_several(several);
            let time = time_text(took_ms);
            let place = url.filter(|_| is_first).map(|url| format!("  {url}")).unwrap_or_default();
            self.show.done(&format!("{name}@{revision}  {time}{place}"));
            for line in held {
                self.show.log(&line);
            }
            if is_first {
                tokio::spawn(follow_log(self.client.clone(), name.clone(), self.lines.clone()));
                self.offer_debugger(&name, runtime).await;
            }
        }
        if let Some((name, failure)) = failure {
            self.failed(name.as_deref(), failure, took_ms);
        } else if has_new && self.wishes.replay {
            self.repeat();
        }
    }

    /// Shows why a deploy failed, and which revision still serves.
    fn failed(&mut self, name: Option<&str>, mut failure: Failure, took_ms: f64) {
        let live = name.and_then(|name| self.live.get_mut(name));
        let held = live.map(|live| std::mem::take(&mut live.held)).unwrap_or_default();
        for mistake in &mut failure.mistakes {
            // The lines of the log are shown in full below.
            if !held.is_empty()
                && let Some((first, _)) = mistake.text.split_once("; its last log lines:")
            {
                mistake.text = first.to_owned();
            }
            mistake.text = self.show.placed(name.unwrap_or_default(), &mistake.text);
            // The log is here.
            mistake.hint.take_if(|hint| hint.contains("mote logs"));
        }
        let mut serving: Vec<String> = match name {
            Some(name) => self.live.get(name).map(|live| (name, live)).into_iter().collect(),
            None => self.live.iter().map(|(name, live)| (name.as_str(), live)).collect::<Vec<_>>(),
        }
        .into_iter()
        .map(|(name, live)| format!("{name}@{}", live.revision))
        .collect();
        serving.sort_unstable();
        let serving = match serving.as_slice() {
            [] => "nothing serves yet; it is tried again after the next change".to_owned(),
            serving => format!("{} still serves", serving.join(", ")),
        };
        let of = name.map(|name| format!("{name}: ")).unwrap_or_default();
        self.show.failed(&format!("{of}{serving}  {}", time_text(took_ms)));
        self.output.failure(&failure);
        for line in held {
            self.show.log(&line);
        }
    }

    async fn offer_debugger(&self, name: &str, runtime: Runtime) {
        let (port, how) = match runtime {
            _ if !self.wishes.inspect => return,
            Runtime::Node | Runtime::Deno => (9229, "attach as to Node"),
            Runtime::Python => (5678, "attach as to debugpy, which requirements.txt must name"),
            _ => return self.show.note(&format!("{name}: no debugger for {}", runtime.as_str())),
        };
        let (show, of, said) = (self.show.clone(), name.to_owned(), AtomicBool::new(false));
        let refused = move |user: Option<u32>| {
            if said.swap(true, Ordering::Relaxed) {
                return;
            }
            let user = user.map_or_else(|| "unknown".to_owned(), |user| user.to_string());
            show.failed(&format!(
                "{of}: a debugger of another user (id {user}) was refused; run mote dev as that user"
            ));
        };
        match self.node.debug(name, port, refused).await {
            Ok(address) => self.show.note(&format!("{name}: debugger at {address}; {how}")),
            Err(error) => self.show.failed(&format!("{name}: no port for a debugger: {error}")),
        }
    }
}

fn shown(address: Option<std::net::SocketAddr>) -> String {
    address.map_or_else(|| "off".to_owned(), |address| address.to_string())
}

/// Packs and deploys the functions of a project, until one of them fails.
async fn deploy(client: Client, mut project: Project) -> Deployed {
    let began = Instant::now();
    let mut live = Vec::new();
    let packing = tokio::task::spawn_blocking(move || {
        let packed = project.pack();
        (project, packed)
    });
    let (project, packed) = packing.await.unwrap_or_else(|error| {
        std::panic::resume_unwind(error.into_panic());
    });
    let packed = match packed {
        Ok(Some(packed)) => Ok(packed),
        Ok(None) => {
            return Deployed {
                project,
                took_ms: 0.0,
                live,
                folders: Vec::new(),
                notes: Vec::new(),
                failure: None,
                is_unchanged: true,
            };
        }
        Err(failure) => Err(failure),
    };
    let mut notes = Vec::new();
    let functions = packed.iter().flat_map(|packed| &packed.functions);
    let folders = functions
        .filter_map(|one| Some((one.spec.name.to_string(), one.folder.clone()?)))
        .collect();
    let failure = match packed {
        Ok(packed) => deploy_all(&client, packed, &mut live, &mut notes).await.err(),
        Err(failure) => Some((None, failure)),
    };
    let took_ms = began.elapsed().as_secs_f64() * 1e3;
    Deployed { project, took_ms, live, folders, notes, failure, is_unchanged: false }
}

async fn deploy_all(
    client: &Client,
    packed: Packed,
    live: &mut Vec<NewRevision>,
    notes: &mut Vec<String>,
) -> Result<(), (Option<String>, Failure)> {
    notes.extend(packed.notes);
    // A chain is deployed after the functions that it calls.
    let (chains, others): (Vec<_>, Vec<_>) =
        packed.functions.into_iter().partition(|one| one.spec.runtime == Runtime::Chain);
    for function in others.into_iter().chain(chains) {
        let name = function.spec.name.to_string();
        let failed = |failure: Failure| (Some(name.clone()), failure);
        for (secret, value) in function.secrets {
            let put = client.put_secret(&secret, value).await;
            put.map_err(|error| failed(error.into()))?;
        }
        let options = DeployOptions { if_changed: false, ..DeployOptions::default() };
        let result = client.deploy(&name, function.tar, &options).await;
        let result = result.map_err(|error| failed(missing_secret(error.into())))?;
        notes.extend(result.warnings.iter().map(|warning| format!("{name}: {warning}")));
        live.push(NewRevision {
            name: name.clone(),
            runtime: function.spec.answered_by(),
            revision: result.revision,
            url: result.urls.http,
        });
    }
    Ok(())
}

/// Adds a hint that says where the values of secrets come from in a session.
pub(super) fn missing_secret(failure: Failure) -> Failure {
    if !failure.is_of("M0414") {
        return failure;
    }
    failure.with_hint("write its value into .env: the secret api-key is the line API_KEY=…")
}

/// Sends the lines of a function's log, until the function is removed.
async fn follow_log(client: Client, name: String, lines: mpsc::Sender<LogLine>) {
    let query = LogQuery { follow: true, ..LogQuery::default() };
    let Ok(mut stream) = client.logs(&name, &query).await else { return };
    while let Ok(Some(line)) = stream.next().await {
        if lines.send(line).await.is_err() {
            return;
        }
    }
}
