//! `mote completion SHELL`.

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
    use std::io::Write;
    std::io::stdout().write_all(&script)?;
    Ok(())
}
