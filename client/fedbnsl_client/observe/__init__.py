"""The site's own page (`participant join --web`): what leaves the site while it leaves, and a button to leave the run.

`site_view` listens to the events of the site's run and keeps what the page shows, `site_page` has its addresses. It
shows nothing of another site, and of the table only what its own operator may know.
"""
