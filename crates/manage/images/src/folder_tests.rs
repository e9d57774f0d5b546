use super::*;
use crate::test_tar::{gzip, tar};
use crate::{Images, Platform};

struct Place {
    folder: tempfile::TempDir,
    images: Images,
}

impl Place {
    fn new() -> Self {
        Self::with(Limits::default())
    }

    fn with(limits: Limits) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let images = Images::open(&folder.path().join("images"), limits).unwrap();
        Self { folder, images }
    }

    /// Opens the folder again as after a crash, without running the code that drops the value.
    fn again(self) -> Self {
        let Self { folder, images } = self;
        std::mem::forget(images);
        let images = Images::open(&folder.path().join("images"), Limits::default()).unwrap();
        Self { folder, images }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join("images").join(name)
    }

    fn names(&self, folder: &str) -> Vec<String> {
        let entries = std::fs::read_dir(self.path(folder)).unwrap();
        let mut names: Vec<String> = entries
            .map(|entry| entry.unwrap().file_name().to_string_lossy().into_owned())
            .collect();
        names.sort();
        names
    }

    /// Imports an archive as `docker save` writes it, with these layers.
    fn import(&self, layers: &[Vec<u8>]) -> Result<Image, ImageError> {
        self.import_bytes(&docker(layers))
    }

    fn import_bytes(&self, bytes: &[u8]) -> Result<Image, ImageError> {
        let mut file = tempfile::tempfile().unwrap();
        file.write_all(bytes).unwrap();
        self.images.import(file, None, &"linux/amd64".parse::<Platform>().unwrap(), &|_| {})
    }
}

fn docker(layers: &[Vec<u8>]) -> Vec<u8> {
    let digests: Vec<String> = layers.iter().map(|layer| crate::documents::digest(layer)).collect();
    let config = serde_json::json!({"architecture": "amd64", "os": "linux",
        "rootfs": {"type": "layers", "diff_ids": digests}});
    let names: Vec<String> = (0..layers.len()).map(|at| format!("{at}/layer.tar")).collect();
    let manifest =
        serde_json::json!([{"Config": "config.json", "RepoTags": ["app:1"], "Layers": names}]);
    let all = tar()
        .bytes("manifest.json", manifest.to_string().as_bytes())
        .bytes("config.json", config.to_string().as_bytes());
    layers.iter().zip(&names).fold(all, |all, (layer, name)| all.bytes(name, layer)).end()
}

fn layer(text: &str) -> Vec<u8> {
    tar().file("a", text).end()
}

#[test]
fn layers_are_kept_once() {
    let place = Place::new();
    let one = place.import(&[layer("base"), layer("one")]).unwrap();
    let two = place.import(&[layer("base"), layer("two")]).unwrap();
    assert_eq!(one.layers[0], two.layers[0]);
    assert_eq!(place.names("layers").len(), 3);
    assert_eq!((one.bytes, one.layers.len()), (7, 2));
    assert!(one.name.starts_with("docker.io/library/app:1@sha256:"), "{}", one.name);
    // The same image, packed.
    let packed = place.import_bytes(&gzip(&docker(&[layer("base"), layer("one")]))).unwrap();
    assert_eq!(packed.digest, one.digest);
    assert_eq!(place.names("work"), Vec::<String>::new());
}

#[test]
fn layers_that_occur_twice_or_are_empty() {
    let place = Place::new();
    let empty = tar().end();
    let image =
        place.import(&[layer("a"), empty.clone(), layer("b"), layer("a"), empty.clone()]).unwrap();
    let texts: Vec<String> = image
        .layers
        .iter()
        .map(|layer| std::fs::read_to_string(layer.join("a")).unwrap())
        .collect();
    assert_eq!(texts, ["b", "a"]);
    assert_eq!(place.import(&[empty.clone(), empty]).unwrap().layers.len(), 1);
}

#[test]
fn what_a_crash_leaves_is_not_used() {
    let place = Place::new();
    let digest = place.import(&[layer("one")]).unwrap().digest;
    let hex = digest.strip_prefix("sha256:").unwrap().to_owned();
    // The crash happened while a layer was unpacked and while a record was written.
    std::fs::create_dir_all(place.path("work/7/root/d")).unwrap();
    std::fs::write(place.path("work/8"), "{\"na").unwrap();
    std::fs::write(place.path("manifests/x.part"), "").unwrap();
    let place = place.again();
    assert_eq!(place.names("work"), Vec::<String>::new());
    assert_eq!(place.names("manifests"), [format!("{hex}.json")]);
    assert!(place.images.get(&digest).unwrap().is_some());
    // A layer without its record is not complete.
    let [name] = &place.names("layers")[..] else { panic!("one layer") };
    std::fs::remove_file(place.path(&format!("layers/{name}/layer.json"))).unwrap();
    let place = place.again();
    assert!(place.images.get(&digest).unwrap().is_none());
    let image = place.import(&[layer("one")]).unwrap();
    assert_eq!(std::fs::read_to_string(image.layers[0].join("a")).unwrap(), "one");
}

#[test]
fn what_is_not_in_use_is_collected() {
    let place = Place::new();
    let one = place.import(&[layer("base"), layer("one")]).unwrap();
    let two = place.import(&[layer("base"), layer("two")]).unwrap();
    let nothing = Collected::default();
    assert_eq!(place.images.collect_garbage(&[]).unwrap(), nothing, "both are leased");
    let (digest, other) = (one.digest.clone(), two.digest.clone());
    drop(one);
    let collected = place.images.collect_garbage(std::slice::from_ref(&digest)).unwrap();
    assert_eq!(collected, nothing, "one is in use, and one leased");
    drop(two);
    let collected = place.images.collect_garbage(std::slice::from_ref(&digest)).unwrap();
    assert_eq!(collected, Collected { images: 1, layers: 1, bytes: 3 });
    assert!(place.images.get(&other).unwrap().is_none());
    assert!(place.images.get(&digest).unwrap().is_some());
    let place = place.again();
    let collected = place.images.collect_garbage(&[]).unwrap();
    assert_eq!(collected, Collected { images: 1, layers: 2, bytes: 7 });
    assert_eq!(place.names("layers"), Vec::<String>::new());
}

/// If a record cannot be read, all layers are kept, because they may be in use.
#[test]
fn a_broken_record() {
    let place = Place::new();
    let digest = place.import(&[layer("one")]).unwrap().digest;
    let name = place.names("manifests")[0].clone();
    std::fs::write(place.path(&format!("manifests/{name}")), "{").unwrap();
    assert!(place.images.get(&digest).is_err());
    assert!(place.images.collect_garbage(std::slice::from_ref(&digest)).is_err());
    assert_eq!(place.names("layers").len(), 1);
    place.import(&[layer("one")]).unwrap();
    assert!(place.images.get(&digest).unwrap().is_some(), "it is written anew");
}

#[test]
fn names_that_are_not_digests() {
    let place = Place::new();
    for name in ["", "x", "sha256:", "sha256:../../x", "../x", "sha512:00"] {
        assert!(place.images.get(name).unwrap().is_none(), "{name}");
    }
}

#[test]
fn limits_of_an_image() {
    let limits = Limits { bytes: 100, entries: 3, layers: 3, ..Limits::default() };
    let place = Place::with(limits);
    let refused = |layers: &[Vec<u8>]| {
        let error = place.import(layers).unwrap_err();
        assert_eq!(error.code(), "M1505", "{error}");
        error.to_string()
    };
    let text = |at: usize| layer(&format!("{at}{}", "x".repeat(50)));
    assert_eq!(
        refused(&[text(1), text(2)]),
        "layer 2 exceeds the size that an image may unpack to"
    );
    assert_eq!(
        refused(&[text(1), text(3), text(4)]),
        "layer 2 exceeds the size that an image may unpack to",
        "a layer that is there counts, too"
    );
    let many = (0..4).fold(tar(), |tar, at| tar.file(&format!("{at}"), "")).end();
    assert_eq!(refused(&[many]), "layer 1 exceeds the number of files that an image may have");
    assert_eq!(
        refused(&[layer("a"), layer("b"), layer("c"), layer("d")]),
        "app:1 has 4 layers, more than 3"
    );
    assert_eq!(place.names("work"), Vec::<String>::new());
}

#[test]
fn archives_that_are_refused() {
    let place = Place::new();
    let good = docker(&[layer("a")]);
    let json = |text: &str| tar().file("manifest.json", text);
    let index = |text: &str| tar().file("index.json", text);
    let layout = "application/vnd.oci.image.manifest.v1+json";
    let missing = format!(
        r#"{{"schemaVersion": 2, "manifests": [{{"mediaType": "{layout}", "digest": "sha256:{}", "size": 2}}]}}"#,
        "0".repeat(64)
    );
    for (bytes, reason) in [
        (json("{").end(), "`manifest.json` in the archive cannot be read"),
        (json("[]").end(), "it contains no image"),
        (json(r#"[{"Config": "x", "Layers": []}]"#).end(), "it has no file `x`"),
        (
            json(r#"[{"Config": "../../etc/passwd", "Layers": []}]"#).end(),
            "it has no file `../../etc/passwd`",
        ),
        (
            json(r#"[{"Config": "l", "Layers": []}]"#).symlink("l", "/etc/passwd").end(),
            "it has no file `l`",
        ),
        (json(r#"[{"Config": "l", "Layers": []}]"#).symlink("l", "l").end(), "it has no file `l`"),
        (json("[]").file("manifest.json", "[]").end(), "same path twice"),
        (index("{}").end(), "`index.json` in the archive cannot be read"),
        (index(r#"{"schemaVersion": 2, "manifests": []}"#).end(), "it contains no image"),
        (index(&missing).end(), "it has no file `blobs/sha256/0000"),
        (tar().bytes("index.json", &vec![b' '; 5 << 20]).end(), "longer than 4 MiB"),
        (good[..good.len() / 2].to_vec(), "archive ends early"),
        (gzip(&good)[..200].to_vec(), "its gzip data is cut off"),
        (b"\xfd7zXZ\0\0\x04".repeat(100), "it is not a tar archive"),
        (tar().device(b'3', "x").end(), "entries of this kind are not allowed"),
    ] {
        let error = place.import_bytes(&bytes).map(|image| image.name).expect_err(reason);
        assert!(error.to_string().contains(reason), "{reason}: {error}");
    }
    let changed = serde_json::json!([{"Config": format!("{}.json", "0".repeat(64)), "Layers": []}]);
    let archive = json(&changed.to_string()).file(&format!("{}.json", "0".repeat(64)), "{}").end();
    let error = place.import_bytes(&archive).unwrap_err().to_string();
    assert!(
        error.starts_with("the configuration in the archive has the digest sha256:4413"),
        "{error}"
    );
    assert_eq!(place.names("layers"), Vec::<String>::new());
    assert_eq!(place.names("manifests"), Vec::<String>::new());
}

#[test]
fn sixty_layers() {
    let place = Place::new();
    let layers: Vec<Vec<u8>> = (0..60).map(|at| layer(&format!("{at}"))).collect();
    let image = place.import(&layers).unwrap();
    assert_eq!(image.layers.len(), 60);
}

#[test]
fn unfinished_downloads() {
    let place = Place::with(Limits { packed_bytes: 10, ..Limits::default() });
    let begin = |name: &str, bytes: usize, hours: u64| {
        let path = place.path(&format!("partial/{name}"));
        std::fs::write(&path, vec![b'x'; bytes]).unwrap();
        let time = std::time::SystemTime::now() - Duration::from_secs(hours * 3600);
        File::options().write(true).open(path).unwrap().set_modified(time).unwrap();
    };
    begin("old", 1, 25);
    begin("held", 1, 26);
    begin("new", 6, 1);
    let turn = place.images.0.blocking_turn(&blob_key("sha256:held"));
    place.images.collect_garbage(&[]).unwrap();
    assert_eq!(place.names("partial"), ["held", "new"]);
    drop(turn);
    // Together, these downloads are larger than an image may be.
    begin("newer", 5, 0);
    place.images.collect_garbage(&[]).unwrap();
    assert_eq!(place.names("partial"), ["newer"]);
}
