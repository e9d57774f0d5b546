//! Checks which features work on this machine, and says how to fix those that do not.

use mote_api::types::{Check, CheckState, DoctorReport};
use mote_sandbox::State;

use super::{Node, advice, interpreters, nats, reach};

/// How many pieces of advice for functions the report contains.
const ADVICE_MAX: usize = 10;

/// The checks that need a running node.
pub(crate) async fn report(node: &Node) -> DoctorReport {
    let reach = reach::of(node);
    let mut checks = of_sandbox(node.config.uid_base);
    checks.extend(of_interpreters(&node.opened.interpreters));
    checks.extend(node.opened.lost_files.iter().map(|lost| Check {
        name: lost.name.clone(),
        state: CheckState::Warn,
        detail: format!("when the node started, {lost}"),
        hint: Some("stop the node and restore the file from a backup".to_owned()),
    }));
    checks.push(data_folder(&node.config.data));
    checks.push(budget(node));
    checks.push(Check {
        name: "reach".into(),
        state: CheckState::Ok,
        detail: match (node.config.lan, reach.is_empty()) {
            (true, false) => "the node is open to the network; the table below shows for whom",
            (true, true) => "open to this machine only, because all addresses are its own",
            (false, _) => "HTTP and CoAP are open to this machine only",
        }
        .to_owned(),
        hint: (!node.config.lan).then(|| "mote up --lan opens them".to_owned()),
    });
    if let Some(nats) = &node.data_path.nats {
        checks.push(nats::check(nats).await);
    }
    checks.extend(node.accepted.journals.status().await.checks());
    checks.extend(node.cells.iter().flat_map(|cells| cells.checks()));
    checks.extend(
        node.addresses.compat.iter().map(|(platform, address)| of_platform(platform, address)),
    );
    checks.extend(of_functions(node));
    let functions = if reach.is_empty() { reach::functions(node) } else { Vec::new() };
    DoctorReport { checks, reach, functions }
}

/// What owners could change in their functions' manifests.
fn of_functions(node: &Node) -> Vec<Check> {
    let mut checks = Vec::new();
    let mut further = 0;
    for revision in node.data_path.engine.list() {
        for advice in advice::of(&revision) {
            if checks.len() >= ADVICE_MAX {
                further += 1;
                continue;
            }
            checks.push(Check {
                name: revision.spec.name.to_string(),
                state: match advice::is_urgent(&advice) {
                    true => CheckState::Warn,
                    false => CheckState::Ok,
                },
                detail: format!("{}: {}", advice.code, advice.text),
                hint: Some(format!("in its mote.toml: [{}] {}", advice.section, advice.change)),
            });
        }
    }
    checks.extend((further > 0).then(|| Check {
        name: "advice".to_owned(),
        state: CheckState::Ok,
        detail: format!("{further} more for functions"),
        hint: Some("mote describe shows the advice for a function".to_owned()),
    }));
    checks
}

/// Reports other users that could replace the data folder. If every user could, the node would not
/// have started.
fn data_folder(data: &std::path::Path) -> Check {
    let above = mote_store::own::changeable_above(data);
    let names: Vec<_> = above.iter().map(|path| path.display().to_string()).collect();
    let others = || {
        format!(
            "{}, above which another user or a group may write: {}",
            data.display(),
            names.join(", ")
        )
    };
    Check {
        name: "data folder".into(),
        state: if names.is_empty() { CheckState::Ok } else { CheckState::Warn },
        detail: if names.is_empty() { data.display().to_string() } else { others() },
        hint: (!names.is_empty()).then(|| {
            "they could replace the data folder; move it, for example to /var/lib/mote".to_owned()
        }),
    }
}

/// Reports the address of another platform's API, and who may manage functions there.
fn of_platform(platform: &str, address: &str) -> Check {
    let host = address.split_once("://").map_or(address, |(_, host)| host);
    let loopback = host.parse().is_ok_and(|at: std::net::SocketAddr| at.ip().is_loopback());
    let who = match (platform, loopback) {
        ("openfaas", _) => "; management requires the token",
        ("tinyfaas" | "nuclio", false) => "; requires the token",
        ("tinyfaas" | "nuclio", true) => {
            "; requires no password: every user of this machine may deploy"
        }
        _ => "",
    };
    Check {
        name: platform.to_owned(),
        state: CheckState::Ok,
        detail: format!("{address}{who}"),
        hint: None,
    }
}

/// Compares the memory that instances may use with the memory of the machine.
fn budget(node: &Node) -> Check {
    let budget = node.budget();
    let machine = mote_process::memory::machine_bytes();
    let over = budget.memory_bytes > machine;
    let text = |bytes| mote_spec::quantity::size_text(bytes);
    Check {
        name: "memory budget".into(),
        state: if over { CheckState::Warn } else { CheckState::Ok },
        detail: format!(
            "{} for instances ({} of {}), {} taken",
            text(budget.memory_bytes),
            node.config.memory,
            text(machine),
            text(budget.taken_bytes)
        ),
        hint: over.then(|| {
            "instances may use more memory than the machine has; lower the setting `memory`"
                .to_owned()
        }),
    }
}

/// The checks that need no node. They check this machine for the calling user, and for a node that
/// would give instances the user ids from `uid_base` on.
pub async fn of_machine(uid_base: u32) -> DoctorReport {
    let mut checks = of_sandbox(uid_base);
    checks.extend(of_interpreters(&interpreters::find().await));
    DoctorReport { checks, ..Default::default() }
}

fn of_sandbox(uid_base: u32) -> Vec<Check> {
    mote_sandbox::capabilities(uid_base)
        .items
        .into_iter()
        .map(|capability| Check {
            name: capability.name.to_string(),
            state: match capability.state {
                State::Enforced => CheckState::Ok,
                State::Degraded => CheckState::Warn,
                State::Missing => CheckState::Fail,
            },
            detail: capability.detail,
            hint: (!capability.hint.is_empty()).then_some(capability.hint),
        })
        .collect()
}

fn install(package: &str) -> String {
    format!("install it and start the node again, for example: apt install {package}")
}

fn of_npm(package: &str) -> String {
    format!(
        "install it and start the node again, for example: npm install --global {package}; it must \
         be on the PATH of the node"
    )
}

/// Whether the node is a cell in a Kubernetes pod. Nobody can change the files of such a pod.
fn in_cluster() -> bool {
    std::env::var_os("KUBERNETES_SERVICE_HOST").is_some()
}

fn of_interpreters(found: &interpreters::Found) -> Vec<Check> {
    let all = [
        ("python", &found.python),
        ("node", &found.node),
        ("bun", &found.bun),
        ("deno", &found.deno),
        ("go", &found.go),
        ("wasm", &found.wasm),
    ];
    all.into_iter()
        .map(|(name, found)| match found {
            Ok(interpreter) => Check {
                name: name.to_owned(),
                state: CheckState::Ok,
                detail: format!("{} at {}", interpreter.version, interpreter.program.display()),
                hint: None,
            },
            Err(reason) => {
                // Few nodes have such functions, so the absence of their program is no defect.
                let is_rare = matches!(name, "wasm" | "bun" | "deno");
                let (state, detail) = if is_rare {
                    let who = format!("only functions with runtime = \"{name}\" need it");
                    (CheckState::Absent, format!("{reason}; {who}"))
                } else {
                    (CheckState::Warn, format!("{reason}: functions in it cannot be deployed"))
                };
                let hint = match (name, in_cluster()) {
                    (_, true) => "use an image of the cell that has it".to_owned(),
                    ("python", _) => install("python3"),
                    ("node", _) => install("nodejs"),
                    ("bun", _) => of_npm("bun"),
                    ("deno", _) => of_npm("deno"),
                    ("wasm", _) => super::wasm::install(),
                    _ => install("golang"),
                };
                Check { name: name.to_owned(), state, detail, hint: Some(hint) }
            }
        })
        .collect()
}
