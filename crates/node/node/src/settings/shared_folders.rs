//! The setting for folders of the host that functions may read.

use mote_core::shared_folders::SharedFolders;

use super::Check;

impl Check<'_> {
    pub(super) fn shared_folders(&mut self) -> SharedFolders {
        let key = "shared_folders";
        let Some(given) = self.given(key).filter(|text| text != "none") else {
            self.settle(key, "none".to_owned());
            return SharedFolders::default();
        };
        let Some(folders) = SharedFolders::parse(&given) else {
            let wanted = "absolute paths such as /srv/models or NAMESPACE=/srv/plant, separated by \
                          commas";
            self.fault(key, wanted, None);
            return SharedFolders::default();
        };
        self.settle(key, folders.to_string());
        folders
    }
}
