//! Tests traffic splits, and the rules by which they change.

use mote_core::rollout::*;

fn share(revision: u64, percent: u32, tag: Option<&str>) -> Share {
    Share { revision, percent, tag: tag.map(str::to_owned) }
}

#[test]
fn only_whole_splits() {
    let check = |shares: &[Share]| Split::new(shares.to_vec()).map(|_| ());
    assert_eq!(check(&[share(1, 90, None), share(2, 10, None)]), Ok(()));
    assert_eq!(check(&[share(1, 100, None), share(2, 0, Some("next"))]), Ok(()));
    assert_eq!(check(&[share(1, 90, None)]), Err(SplitError::Sum(90)));
    assert_eq!(check(&[]), Err(SplitError::Sum(0)));
    let twice = check(&[share(1, 50, None), share(1, 50, None)]);
    assert_eq!(twice, Err(SplitError::Twice("revision 1".into())));
    let twice = check(&[share(1, 50, Some("a")), share(2, 50, Some("a"))]);
    assert_eq!(twice, Err(SplitError::Twice("tag a".into())));
}

#[test]
fn shares_are_kept_and_keys_stay() {
    let split = Split::new(vec![share(1, 90, None), share(2, 10, None)]).unwrap();
    let to_second = (0..100_000).filter(|key| split.pick(*key) == 2).count();
    assert!((9_500..10_500).contains(&to_second), "{to_second}");
    let wider = Split::new(vec![share(1, 70, None), share(2, 30, None)]).unwrap();
    for key in 0..10_000 {
        assert_eq!(split.pick(key), split.pick(key));
        if split.pick(key) == 2 {
            assert_eq!(wider.pick(key), 2, "who saw the new revision keeps seeing it");
        }
    }
}

#[test]
fn tags_reach_what_shares_do_not() {
    let split = Split::new(vec![share(1, 100, None), share(2, 0, Some("next"))]).unwrap();
    assert_eq!(split.by_tag("next"), Some(2));
    assert_eq!(split.by_tag("old"), None);
    assert!(split.reaches(2) && !split.reaches(3));
    assert!((0..1_000).all(|key| split.pick(key) == 1));
}

#[test]
fn edits_say_what_holds_and_keep_tags() {
    let edit = |revision, percent, tag: Option<&str>| Edit {
        revision,
        percent,
        tag: tag.map(str::to_owned),
    };
    let old = Split::new(vec![share(1, 0, Some("old")), share(3, 100, None)]).unwrap();
    let after = |edits: &[Edit]| old.edited(edits).map(|split| split.to_string());
    for (edits, expected) in [
        (&[edit(3, Some(90), None), edit(4, Some(10), None)][..], "@1:old 0 %, @3 90 %, @4 10 %"),
        (&[edit(4, Some(100), None)], "@1:old 0 %, @4 100 %"),
        (&[edit(4, Some(0), Some("next"))], "@1:old 0 %, @3 100 %, @4:next 0 %"),
        (&[edit(4, None, Some("next"))], "@1:old 0 %, @3 100 %, @4:next 0 %"),
        (&[edit(3, None, Some("old"))], "@3:old 100 %"),
        (&[edit(1, None, Some(""))], "@3 100 %"),
        (&[edit(1, Some(100), Some(""))], "@1 100 %"),
    ] {
        assert_eq!(after(edits).as_deref(), Ok(expected), "{edits:?}");
    }
    assert_eq!(after(&[edit(3, Some(90), None)]), Err(SplitError::Sum(90)));
    assert_eq!(after(&[edit(3, Some(0), None)]), Err(SplitError::Sum(0)));
    let twice = after(&[edit(3, Some(50), None), edit(3, Some(50), None)]);
    assert_eq!(twice, Err(SplitError::Twice("revision 3".into())));
    let twice = after(&[edit(3, Some(100), Some("a")), edit(4, None, Some("a"))]);
    assert_eq!(twice, Err(SplitError::Twice("tag a".into())));
    for bad in ["3", "Next", "a_b", "-a", "a-", "\n"] {
        assert!(matches!(after(&[edit(4, None, Some(bad))]), Err(SplitError::Tag(_))), "{bad}");
    }
    let many: Vec<_> = (4..12).map(|n| edit(n, None, Some(&*format!("t{n}")))).collect();
    assert_eq!(after(&many), Err(SplitError::TooMany(10)));
}

#[test]
fn rolling_back_goes_the_way_traffic_came() {
    let mut traffic = Traffic::whole(1);
    assert_eq!(traffic.back(), None);
    for revision in [2, 3] {
        traffic = traffic.moved(traffic.split.all_to(revision).unwrap());
    }
    assert_eq!(traffic.back(), Some(2));
    let second = traffic.rolled_back(2).unwrap();
    assert_eq!((second.split.main(), second.back()), (2, Some(1)));
    assert_eq!(second.rolled_back(1).unwrap().back(), None);
    // After a rollback, another revision is deployed. The revision that was rolled back must not
    // become the next rollback target.
    let fourth = second.moved(second.split.all_to(4).unwrap());
    assert_eq!(fourth.before, [1, 2]);
    // A rollback may name any revision, even one that was never live.
    assert_eq!(traffic.rolled_back(1).unwrap().before, [] as [u64; 0]);
    assert_eq!(traffic.rolled_back(7).unwrap().before, [1, 2]);

    let part = |old, new| Split::new(vec![share(3, old, None), share(4, new, None)]).unwrap();
    let begun = traffic.moved(part(90, 10));
    assert_eq!(begun.back(), Some(3), "the trial ends, nobody goes to 2");
    let far = begun.moved(part(10, 90));
    assert_eq!(far.back(), Some(3));
    assert!(far.needs(3) && far.needs(4) && !far.needs(2));
    assert_eq!(far.moved(Split::whole(4)).back(), Some(3));
}

#[test]
fn a_division_ends_at_the_revision_that_had_everything() {
    let part = |old, new| Split::new(vec![share(1, old, None), share(2, new, None)]).unwrap();
    let second = Traffic::whole(1).moved(Split::whole(2));
    // An older revision receives a part of the traffic again.
    let divided = second.moved(part(50, 50));
    assert_eq!(divided.back(), Some(2), "2 had everything before, not 1");
    assert_eq!(divided.moved(part(90, 10)).back(), Some(2), "a division may change");
    let ended = divided.rolled_back(2).unwrap();
    assert_eq!((ended.split.main(), ended.back()), (2, Some(1)), "and once more goes to 1");
    // While traffic is divided, the revision that had all of it may have no share at all.
    let of_others = Split::new(vec![share(2, 50, None), share(3, 50, None)])
        .map(|s| Traffic::whole(1).moved(s));
    let of_others = of_others.unwrap();
    assert_eq!(of_others.back(), Some(1));
    assert!(of_others.needs(1));
}

#[test]
fn stored_traffic_is_checked() {
    let text = r#"{"split":[{"revision":1,"percent":100,"tag":null}],"before":[]}"#;
    assert_eq!(serde_json::from_str::<Traffic>(text).unwrap(), Traffic::whole(1));
    assert_eq!(serde_json::to_string(&Traffic::whole(1)).unwrap(), text);
    let short = text.replace("100", "99");
    assert!(serde_json::from_str::<Traffic>(&short).is_err());
}
