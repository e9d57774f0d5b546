//! Tests behaviour that only the state in a file has. `tests/contract` tests the behaviour of every
//! implementation.

use mote_core::state::Condition;

use super::*;

async fn put(state: &FileState, value: &'static str) -> Result<Outcome, StateError> {
    let namespace = Namespace::Function("f".to_owned());
    let key = "k".to_owned();
    let value = value.into();
    let condition = Condition::None;
    let operation = Operation::Put { key, value, condition, ttl_ms: None };
    match state.begin(namespace, operation, Quota::default(), true, 1) {
        Begun::Done(result) => result,
        Begun::Later(result) => result.await,
    }
}

#[tokio::test]
async fn a_node_that_keeps_nothing_has_no_file() {
    let folder = tempfile::tempdir().expect("a folder");
    let state = FileState::new(&folder.path().join("state.db"));
    assert_eq!(state.usage().await, Ok(Vec::new()));
    state.clear(Namespace::Function("f".into())).await.expect("nothing to do");
    assert!(!folder.path().join("state.db").exists());
}

#[tokio::test]
async fn a_file_that_cannot_be_opened_is_an_error_and_tried_again() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("state.db");
    let state = FileState::new(&path);
    std::fs::create_dir(&path).expect("made");
    assert!(matches!(put(&state, "v").await, Err(StateError::Disk(_))));
    std::fs::remove_dir(&path).expect("removed");
    put(&state, "v").await.expect("opened now");
    state.close();
    let refused = put(&state, "w").await;
    assert!(matches!(refused, Err(StateError::Disk(_))), "{refused:?}");
}
