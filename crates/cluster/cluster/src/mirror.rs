//! Copies of objects of the API server, as this process last saw them. They arrive over a watch, so
//! nothing polls. While the API server cannot be reached, the last copies stay.

use std::collections::BTreeMap;
use std::fmt::Debug;
use std::sync::Arc;

use futures_util::{Stream, StreamExt as _};
use kube::ResourceExt;
use kube::runtime::WatchStreamExt as _;
use kube::runtime::watcher::{self, Config, Event};
use parking_lot::RwLock;
use serde::de::DeserializeOwned;
use tokio::sync::watch;

/// The objects by name. Cheap to clone.
pub(crate) struct Mirror<K> {
    objects: Arc<RwLock<BTreeMap<String, Arc<K>>>>,
    synced: watch::Receiver<bool>,
}

impl<K> Clone for Mirror<K> {
    fn clone(&self) -> Self {
        Self { objects: self.objects.clone(), synced: self.synced.clone() }
    }
}

impl<K> Mirror<K> {
    pub(crate) fn get(&self, name: &str) -> Option<Arc<K>> {
        self.objects.read().get(name).cloned()
    }

    pub(crate) fn all(&self) -> Vec<Arc<K>> {
        self.objects.read().values().cloned().collect()
    }

    pub(crate) fn names(&self) -> Vec<String> {
        self.objects.read().keys().cloned().collect()
    }

    /// Waits until all objects have been seen once.
    pub(crate) async fn synced(&self) {
        // The sender lives as long as the process.
        let _ = self.synced.clone().wait_for(|synced| *synced).await;
    }
}

/// Follows a watch for the rest of the process. After each change, `changed` is called with the
/// object before and after the change.
pub(crate) fn follow<K, S>(
    what: &'static str,
    stream: S,
    changed: impl Fn(Option<&K>, Option<&K>) + Send + 'static,
) -> Mirror<K>
where
    K: kube::Resource<DynamicType: Default> + ResourceExt + Clone + Debug + DeserializeOwned,
    K: Send + Sync + 'static,
    S: Stream<Item = Result<Event<K>, watcher::Error>> + Send + 'static,
{
    follow_part(what, stream, |_| {}, changed)
}

/// Follows a watch like [`follow`], but keeps only a part of each object: `trim` removes the rest.
/// The API server's notes about who set which field are never kept, because they are as large as
/// the object itself.
pub(crate) fn follow_part<K, S>(
    what: &'static str,
    stream: S,
    trim: impl Fn(&mut K) + Send + 'static,
    changed: impl Fn(Option<&K>, Option<&K>) + Send + 'static,
) -> Mirror<K>
where
    K: kube::Resource<DynamicType: Default> + ResourceExt + Clone + Debug + DeserializeOwned,
    K: Send + Sync + 'static,
    S: Stream<Item = Result<Event<K>, watcher::Error>> + Send + 'static,
{
    let (seen, synced) = watch::channel(false);
    let trim = move |object: &mut K| {
        object.meta_mut().managed_fields = None;
        trim(object);
    };
    let mirror = Mirror { objects: Arc::default(), synced };
    let objects = mirror.objects.clone();
    tokio::spawn(async move {
        let mut stream = std::pin::pin!(stream.default_backoff());
        let mut listed: BTreeMap<String, Arc<K>> = BTreeMap::new();
        let mut away = false;
        while let Some(event) = stream.next().await {
            let event = match event {
                Ok(event) => event,
                Err(error) => {
                    if !away {
                        tracing::warn!("{what}: the API server does not answer: {error}");
                    }
                    away = true;
                    continue;
                }
            };
            if away {
                tracing::info!("{what}: the API server answers again");
                away = false;
            }
            match event {
                Event::Init => listed.clear(),
                Event::InitApply(mut object) => {
                    trim(&mut object);
                    listed.insert(object.name_any(), Arc::new(object));
                }
                Event::InitDone => {
                    let after = std::mem::take(&mut listed);
                    let before = std::mem::replace(&mut *objects.write(), after.clone());
                    for (name, object) in &after {
                        changed(before.get(name).map(|object| &**object), Some(object));
                    }
                    for (name, object) in &before {
                        if !after.contains_key(name) {
                            changed(Some(object), None);
                        }
                    }
                    seen.send_replace(true);
                }
                Event::Apply(mut object) => {
                    trim(&mut object);
                    let object = Arc::new(object);
                    let before = objects.write().insert(object.name_any(), object.clone());
                    changed(before.as_deref(), Some(&object));
                }
                Event::Delete(object) => {
                    let before = objects.write().remove(&object.name_any());
                    changed(before.as_deref().or(Some(&object)), None);
                }
            }
        }
    });
    mirror
}

/// Functions are listed a few at a time, because one function may have a megabyte of files.
pub(crate) fn functions_config() -> Config {
    Config::default().page_size(16)
}

/// Removes everything from a function that decisions do not need. Code that packs the files reads
/// the function again.
pub(crate) fn trim_function(function: &mut crate::resources::Function) {
    function.spec.files = None;
    function.spec.settings.retain(|key, _| key == "scale");
    function.metadata.annotations = None;
}
