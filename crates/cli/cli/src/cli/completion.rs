//! `mote completion SHELL`: prints clap's script for verbs and flags, extended by the names of
//! functions. The script asks the node for these names when it needs them.

use clap::CommandFactory;
use clap_complete::Shell as ClapShell;

use super::args::{Args, Shell};
use super::failure::Failure;

pub(super) fn run(shell: Shell) -> Result<(), Failure> {
    let shell = match shell {
        Shell::Bash => ClapShell::Bash,
        Shell::Zsh => ClapShell::Zsh,
        Shell::Fish => ClapShell::Fish,
    };
    let mut script = Vec::new();
    clap_complete::generate(shell, &mut Args::command(), "mote", &mut script);
    let verbs = NAMED.join(if matches!(shell, ClapShell::Bash) { "|" } else { " " });
    let names = match shell {
        ClapShell::Bash => BASH,
        ClapShell::Zsh => ZSH,
        _ => FISH,
    };
    script.extend_from_slice(names.replace("VERBS", &verbs).as_bytes());
    use std::io::Write;
    std::io::stdout().write_all(&script)?;
    Ok(())
}

/// The verbs whose arguments are names of functions.
const NAMED: [&str; 11] = [
    "invoke",
    "describe",
    "revisions",
    "rollback",
    "traffic",
    "logs",
    "scale",
    "top",
    "remove",
    "rm",
    "bench",
];

/// The script limits each request to one second, because a node that does not answer must not block the
/// shell for longer.
const BASH: &str = r#"
_mote_with_names() {
    _mote "$@"
    local current="${COMP_WORDS[COMP_CWORD]}" word
    [[ $current == -* ]] && return
    for word in "${COMP_WORDS[@]:1:COMP_CWORD-1}"; do
        case $word in
            VERBS)
                COMPREPLY+=($(compgen -W "$(mote list --output name --quiet --timeout 1 2>/dev/null)" -- "$current"))
                return
                ;;
        esac
    done
}
complete -F _mote_with_names -o nosort -o bashdefault -o default mote
"#;

const ZSH: &str = r#"
_mote_with_names() {
    local word
    if [[ $PREFIX != -* ]]; then
        for word in ${words[2,CURRENT-1]}; do
            if (( ${${=:-VERBS}[(Ie)$word]} )); then
                compadd -- ${(f)"$(mote list --output name --quiet --timeout 1 2>/dev/null)"}
                break
            fi
        done
    fi
    _mote "$@"
}
compdef _mote_with_names mote
"#;

const FISH: &str = r#"
complete -c mote -n "__fish_seen_subcommand_from VERBS" -f -a "(mote list --output name --quiet --timeout 1 2>/dev/null)"
"#;
