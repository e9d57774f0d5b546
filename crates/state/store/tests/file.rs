//! Runs the contract tests against the state in one file.

mod contract;

use contract::Place;
use mote_core::state::State;
use mote_store::state::FileState;

struct File {
    folder: tempfile::TempDir,
    state: FileState,
}

impl Place for File {
    fn state(&self) -> &dyn State {
        &self.state
    }

    async fn reopen(&mut self) {
        self.state.close();
        self.state = FileState::new(&self.folder.path().join("state.db"));
    }
}

async fn open() -> Option<File> {
    let folder = tempfile::tempdir().expect("a folder");
    let state = FileState::new(&folder.path().join("state.db"));
    Some(File { folder, state })
}

contract!(open);
